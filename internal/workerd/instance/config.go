package instance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// The names of the services in the configuration. Peers that run another version
// of the application name them too, so they never change.
const (
	serviceWorker   = "worker"
	serviceAssets   = "assets"
	serviceDisk     = "disk"
	serviceInternet = "internet"
	socketName      = "http"
	configName      = "config"
)

// protoHeader carries the scheme of the original request.
const protoHeader = "X-Forwarded-Proto"

// config renders the configuration for s. credentials is the path of the file
// that the process reads its bucket credentials from.
func config(s *Spec, credentials string) ([]byte, error) {
	m := s.Deployment.Manifest
	var all []node
	entry := serviceWorker
	if m.Main != "" {
		w, err := worker(s)
		if err != nil {
			return nil, err
		}
		all = append(all, object(field{"name", text(serviceWorker)}, field{"worker", w}))
	}
	if m.Assets != nil {
		a, err := assets(s)
		if err != nil {
			return nil, err
		}
		all = append(all, object(field{"name", text(serviceAssets)}, field{"assets", a}))
		entry = serviceAssets
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("deployment %s has neither a worker nor assets", m.Version)
	}
	more, err := services(s)
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	if s.keepsState() {
		all = append(all, object(field{"name", text(serviceDisk)},
			field{"disk", object(field{"path", text(s.Disk)}, field{"writable", boolean(true)})}))
	}
	if s.Cache != nil {
		all = append(all, s.Cache.service())
	}
	if s.Trial {
		all = append(all, object(field{"name", text(serviceInternet)}, field{"network", object(field{"allow", list()})}))
	}
	if s.Network != nil && !s.Trial {
		all = append(all, object(field{"name", text(serviceInternet)}, field{"network", object(
			field{"allow", texts(s.Network.Allow)}, field{"deny", texts(s.Network.Deny)},
			// As in the service of that name that workerd brings along.
			field{"tlsOptions", object(field{"trustBrowserCas", boolean(true)})})}))
	}
	http := object()
	if s.ForwardedProto {
		http = object(field{"forwardedProtoHeader", text(protoHeader)})
	}
	socket := object(field{"name", text(socketName)}, field{"address", text("127.0.0.1:0")},
		field{"http", http}, field{"service", text(entry)})
	sockets := []node{socket}
	if s.migrates() {
		service, socket, err := migrations(s)
		if err != nil {
			return nil, err
		}
		all, sockets = append(all, service), append(sockets, socket)
	}
	fields := []field{
		{"services", list(all...)},
		{"sockets", list(sockets...)},
		{"logging", object(field{"structuredLogging", boolean(true)})},
	}
	if s.clustered() {
		fields = append(fields, field{"cluster", cluster(s.Cluster, credentials)})
	}
	var b bytes.Buffer
	b.WriteString("using Workerd = import \"/workerd/workerd.capnp\";\n")
	fmt.Fprintf(&b, "const %s :Workerd.Config = %s;\n", configName, object(fields...))
	return b.Bytes(), nil
}

func (s *Spec) clustered() bool { return s.Cluster != nil && !s.Trial && s.keepsState() }

// keepsState reports whether it has a disk for the deployment's state.
func (s *Spec) keepsState() bool { return s.Deployment.Durable() && !s.StandIn }

func worker(s *Spec) (node, error) {
	m := s.Deployment.Manifest
	// The first module is the main one, wherever the manifest has it.
	isMain := func(mod layout.Module) bool { return mod.Name == m.Main }
	i := slices.IndexFunc(m.Modules, isMain)
	if i < 0 {
		return "", fmt.Errorf("deployment %s has no module %q", m.Version, m.Main)
	}
	ordered := append([]layout.Module{m.Modules[i]}, slices.DeleteFunc(slices.Clone(m.Modules), isMain)...)
	modules := make([]node, len(ordered))
	for i, mod := range ordered {
		var err error
		if modules[i], err = module(mod); err != nil {
			return "", err
		}
	}
	if code := checks(m, ordered[0]); code != "" && s.Trial {
		modules = append([]node{object(field{"name", text(checkModule)}, field{"esModule", text(code)})}, modules...)
	}
	fields := []field{
		{"modules", list(modules...)},
		{"compatibilityDate", text(m.CompatibilityDate)},
		{"compatibilityFlags", texts(m.CompatibilityFlags)},
		{"cacheApiOutbound", s.Cache.designator()},
	}
	bindings, err := bindings(s)
	if err != nil {
		return "", err
	}
	fields = append(fields, field{"bindings", list(bindings...)})
	if s.StandIn {
		return object(fields...), nil
	}
	engine, err := workflowsEngine(m)
	if err != nil {
		return "", err
	}
	fields = append(fields, field{"workflowsEngine", engine})
	if len(m.Classes) > 0 {
		classes := make([]node, len(m.Classes))
		for i, c := range m.Classes {
			classes[i] = object(field{"className", text(c.Name)}, field{"uniqueKey", text(c.Key)}, field{"enableSql", boolean(c.SQL)})
		}
		// Also in a trial: objects in memory have no SQL.
		storage := object(field{"localDisk", text(serviceDisk)})
		fields = append(fields, field{"durableObjectNamespaces", list(classes...)}, field{"durableObjectStorage", storage})
	}
	return object(fields...), nil
}

func module(m layout.Module) (node, error) {
	body := embed("/" + filepath.ToSlash(filepath.Join(layout.ModulesDir, layout.LocalName(m))))
	kind, ok := map[layout.ModuleType]string{
		layout.ESModule: "esModule", layout.CommonJS: "commonJsModule", layout.Text: "text",
		layout.Data: "data", layout.Wasm: "wasm", layout.JSON: "json",
	}[m.Type]
	if !ok {
		return "", fmt.Errorf("module %q has the unknown type %q", m.Name, m.Type)
	}
	return object(field{"name", text(m.Name)}, field{kind, body}), nil
}

func bindings(s *Spec) ([]node, error) {
	m := s.Deployment.Manifest
	var out []node
	for _, name := range slices.Sorted(maps.Keys(m.Vars)) {
		value := field{"json", text(string(m.Vars[name]))}
		var plain string
		if json.Unmarshal(m.Vars[name], &plain) == nil && !bytes.Equal(m.Vars[name], []byte("null")) {
			value = field{"text", text(plain)}
		}
		out = append(out, object(field{"name", text(name)}, value))
	}
	for _, d := range m.DurableObjects {
		class := text(d.Class)
		if s.StandIn {
			class = object(field{"className", class}, field{"serviceName", text(serviceAway)})
		}
		out = append(out, object(field{"name", text(d.Binding)}, field{"durableObjectNamespace", class}))
	}
	if m.Assets != nil && m.Assets.Binding != "" && m.Main != "" {
		out = append(out, object(field{"name", text(m.Assets.Binding)},
			field{"service", object(field{"name", text(serviceAssets)}, field{"entrypoint", text("AssetWorker")})}))
	}
	entry := serviceWorker
	if m.Assets != nil {
		entry = serviceAssets
	}
	more, err := serviceBindings(s, entry)
	return append(out, more...), err
}

func assets(s *Spec) (node, error) {
	m := s.Deployment.Manifest
	c := map[string]any{}
	for k, v := range map[string]string{
		"html_handling": m.Assets.HTMLHandling, "not_found_handling": m.Assets.NotFoundHandling,
		"headers": m.Assets.Headers, "redirects": m.Assets.Redirects,
	} {
		if v != "" {
			c[k] = v
		}
	}
	if len(m.Assets.RunWorkerFirst) > 0 {
		c["run_worker_first"] = m.Assets.RunWorkerFirst
	}
	body, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	fields := []field{
		{"path", text(filepath.Join(s.Deployment.Dir, layout.AssetsDir))},
		{"config", text(string(body))},
	}
	if m.Main != "" {
		fields = append(fields, field{"userWorker", text(serviceWorker)})
	} else {
		fields = append(fields, field{"compatibilityDate", text(m.CompatibilityDate)},
			field{"compatibilityFlags", texts(m.CompatibilityFlags)})
	}
	return object(fields...), nil
}

func cluster(c *Cluster, credentials string) node {
	options := []string{"aws_credentials_file=" + credentials}
	if c.Endpoint != "" {
		options = append(options, "aws_endpoint="+c.Endpoint)
	}
	if c.Region != "" {
		options = append(options, "aws_region="+c.Region)
	}
	fields := []field{
		{"bucket", text(c.Bucket)},
		{"bucketOptions", texts(options)},
		{"address", text(c.Listen)},
		{"key", text(c.Key)},
		{"stopTimeoutMs", number(c.stopTimeout().Milliseconds())},
	}
	if c.Advertise != "" {
		fields = append(fields, field{"advertise", text(c.Advertise)})
	}
	if c.UnsafePublicAddress {
		fields = append(fields, field{"unsafePublicAddress", boolean(true)})
	}
	if c.TimeDivisor > 1 {
		fields = append(fields, field{"unsafeTimeDivisor", number(int64(c.TimeDivisor))})
	}
	return object(fields...)
}
