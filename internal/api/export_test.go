package api

// Route is a row of the route table, for tests.
type Route struct {
	Method, Path string
	Kind         string // of the tokens that it takes
	Admin        bool
}

// Routes is the route table of a node with these parts.
func Routes(d Deps) []Route {
	kinds := map[tokenKind]string{public: "public", ingressToken: "ingress", nodeToken: "node", fleetToken: "fleet", operatorToken: "operator"}
	var out []Route
	for _, r := range (&server{Deps: d}).routes() {
		out = append(out, Route{r.method, r.path, kinds[r.access.kind], r.access.admin != ""})
	}
	return out
}
