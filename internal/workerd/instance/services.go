package instance

import (
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/scafo/scafo/internal/workerd/layout"
)

// The services that come inside the runtime, as its own Workers by name. Their
// classes' unique keys and the names of their objects say where the state lies:
// none of it ever changes. The classes of the application have keys of another
// form.
const (
	serviceKV        = "kv"
	serviceKVValues  = "kv-values"
	serviceD1        = "d1"
	serviceQueues    = "queues"
	serviceDelays    = "queue-delays"
	serviceCron      = "cron"
	serviceWorkflows = "workflows"

	// servicesDate is the compatibility date of those Workers.
	servicesDate = "2026-01-01"
	// extraHandlers lets a Worker call the scheduled and queue handlers of another.
	extraHandlers = "service_binding_extra_handlers"
	// workflowKey begins the key of a workflow's objects; the runtime makes it up.
	workflowKey = "miniflare-workflows-"
	// valuesPath is where large values of KV lie in the bucket, below the cluster's
	// own prefix.
	valuesPath = "kv"
)

// designator names a service, with what it finds in ctx.props.
func designator(name, entrypoint string, props any) (node, error) {
	fields := []field{{"name", text(name)}}
	if entrypoint != "" {
		fields = append(fields, field{"entrypoint", text(entrypoint)})
	}
	if props != nil {
		p, err := json.Marshal(props)
		if err != nil {
			return "", err
		}
		fields = append(fields, field{"props", object(field{"json", text(string(p))})})
	}
	return object(fields...), nil
}

func binding(name, kind string, value node) node {
	return object(field{"name", text(name)}, field{kind, value})
}

func jsonBinding(name string, value any) (node, error) {
	b, err := json.Marshal(value)
	return binding(name, "json", text(string(b))), err
}

// wrapped is a binding whose API the runtime puts around a service.
func wrapped(name, module string, inner node) node {
	return binding(name, "wrapped", object(field{"moduleName", text(module)},
		field{"innerBindings", list(binding("fetcher", "service", inner))}))
}

// serviceBindings are the Worker's bindings to the services. entry is the service
// that gets the requests.
func serviceBindings(s *Spec, entry string) ([]node, error) {
	m := s.Deployment.Manifest
	var out []node
	var failed error
	target := func(name, entrypoint string, props any) node {
		if s.StandIn && name != serviceWorker && name != serviceAssets {
			name, entrypoint, props = serviceAway, "", nil
		}
		n, err := designator(name, entrypoint, props)
		if err != nil {
			failed = err
		}
		return n
	}
	for _, k := range m.KV {
		out = append(out, binding(k.Binding, "kvNamespace", target(serviceKV, "", map[string]string{"namespace": k.ID})))
	}
	for _, d := range m.D1 {
		out = append(out, wrapped(d.Binding, "cloudflare-internal:d1-api", target(serviceD1, "", map[string]string{"database": d.ID})))
	}
	for _, p := range m.Producers {
		to := target(serviceQueues, "", map[string]string{"queue": p.Queue})
		if p.Delay > 0 {
			to = target(serviceDelays, "", map[string]any{"queue": p.Queue, "delay": p.Delay})
		}
		out = append(out, binding(p.Binding, "queue", to))
	}
	for _, w := range m.Workflows {
		out = append(out, wrapped(w.Binding, "cloudflare-internal:workflows-api", target(serviceWorkflows, "WorkflowBinding", map[string]string{"workflow": w.Name})))
	}
	for _, e := range m.Bindings {
		to := entry
		if e.Entrypoint != "" {
			to = serviceWorker
		}
		var props any
		if len(e.Props) > 0 {
			props = e.Props
		}
		out = append(out, binding(e.Binding, "service", target(to, e.Entrypoint, props)))
	}
	return out, failed
}

// workflowsEngine is what the Worker says of its workflows; empty without any.
func workflowsEngine(m *layout.Manifest) (node, error) {
	if len(m.Workflows) == 0 {
		return "", nil
	}
	engine, err := designator(serviceWorkflows, "Engine", nil)
	if err != nil {
		return "", err
	}
	all := make([]node, len(m.Workflows))
	for i, w := range m.Workflows {
		to, err := designator(serviceWorkflows, "WorkflowBinding", map[string]string{"workflow": w.Name})
		if err != nil {
			return "", err
		}
		all[i] = object(field{"className", text(w.Class)}, field{"name", text(w.Name)}, field{"bindingService", to})
	}
	return object(field{"actorClass", engine}, field{"workflows", list(all...)}), nil
}

// inside is one of the runtime's own Workers.
type inside struct {
	service  string
	bundled  string // its module
	flags    []string
	class    string // of its objects, also their unique key; empty: none
	bindings []node
	again    string // a main module before it; empty: none
}

func (w inside) render() node {
	modules := []node{object(field{"name", text(w.service + ".js")}, field{"bundled", text("/workerd/" + w.bundled)})}
	if w.again != "" {
		modules = append([]node{object(field{"name", text("main.js")}, field{"esModule", text(w.again)}),
			object(field{"name", text(againModule)}, field{"esModule", text(againCode)})}, modules...)
	}
	fields := []field{
		{"modules", list(modules...)}, {"compatibilityDate", text(servicesDate)}, {"compatibilityFlags", texts(w.flags)},
		{"bindings", list(w.bindings...)},
	}
	if w.class != "" {
		fields = append(fields, field{"durableObjectNamespaces", list(object(field{"className", text(w.class)},
			field{"uniqueKey", text(w.class)}, field{"enableSql", boolean(true)}))})
	}
	fields = append(fields, field{"durableObjectStorage", object(field{"localDisk", text(serviceDisk)})})
	return object(field{"name", text(w.service)}, field{"worker", object(fields...)})
}

// services are the services that the deployment needs beside its Worker. In a
// trial nothing comes due: it has no crons, and its queues have no consumers.
func services(s *Spec) ([]node, error) {
	m := s.Deployment.Manifest
	if s.StandIn {
		return []node{away(m)}, nil
	}
	var out []node
	if len(m.KV) > 0 {
		out = append(out, kv(s)...)
	}
	if len(m.D1) > 0 {
		out = append(out, inside{service: serviceD1, bundled: "d1.js", class: "D1Database", again: againD1,
			bindings: []node{binding("DATABASE", "durableObjectNamespace", text("D1Database"))}}.render())
	}
	for _, render := range []func(*Spec) ([]node, error){queues, crons, workflows} {
		more, err := render(s)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// clusteredBinding tells a service that it has peers.
func clusteredBinding(s *Spec) []node {
	if !s.clustered() {
		return nil
	}
	return []node{binding("CLUSTERED", "json", text("true"))}
}

// valuesDir is where a trial has large values of KV.
func (s *Spec) valuesDir() string { return filepath.Join(s.Disk, serviceKVValues) }

func kv(s *Spec) []node {
	shared := field{"bucket", object(field{"path", text(valuesPath)})}
	if !s.clustered() {
		shared = field{"disk", object(field{"path", text(s.valuesDir())}, field{"writable", boolean(true)})}
	}
	return []node{
		inside{service: serviceKV, bundled: "kv.js", class: "KVNamespace", again: againKV, bindings: append([]node{
			binding("SHARD", "durableObjectNamespace", text("KVNamespace")),
			binding("BLOBS", "service", text(serviceKVValues)),
		}, clusteredBinding(s)...)}.render(),
		object(field{"name", text(serviceKVValues)}, shared),
	}
}

// consumer is how the runtime's service is told of a consumer.
type consumer struct {
	Consumer       string `json:"consumer"` // the binding
	MaxBatchSize   *int64 `json:"maxBatchSize,omitempty"`
	MaxBatchWait   *int64 `json:"maxBatchTimeout,omitempty"`
	MaxRetries     *int64 `json:"maxRetries,omitempty"`
	RetryDelay     *int64 `json:"retryDelay,omitempty"`
	MaxConcurrency *int64 `json:"maxConcurrency,omitempty"`
	DeadLetters    string `json:"deadLetterQueue,omitempty"`
}

func queues(s *Spec) ([]node, error) {
	m := s.Deployment.Manifest
	if len(m.Producers)+len(m.Consumers) == 0 {
		return nil, nil
	}
	all := map[string]consumer{}
	if !s.Trial {
		for _, c := range m.Consumers {
			all[c.Queue] = consumer{
				Consumer: "worker", MaxBatchSize: c.MaxBatchSize, MaxBatchWait: c.MaxBatchWait, MaxRetries: c.MaxRetries,
				RetryDelay: c.RetryDelay, MaxConcurrency: c.MaxConcurrency, DeadLetters: c.DeadLetters,
			}
		}
	}
	consumers, err := jsonBinding("CONSUMERS", all)
	if err != nil {
		return nil, err
	}
	out := []node{inside{service: serviceQueues, bundled: "queues.js", flags: []string{extraHandlers}, class: "QueueShard", bindings: append([]node{
		binding("SHARD", "durableObjectNamespace", text("QueueShard")), consumers,
		binding("worker", "service", text(serviceWorker)),
	}, clusteredBinding(s)...)}.render()}
	delays, err := queueDelays(m)
	return append(out, delays...), err
}

// delaysModule puts the delay of a producer's binding on what is sent without one:
// the runtime's own binding knows only that of a message.
const delaysModule = `export default {
  fetch(request, env, ctx) {
    const headers = new Headers(request.headers);
    if (!headers.has("X-Msg-Delay-Secs")) headers.set("X-Msg-Delay-Secs", String(ctx.props.delay));
    return env[ctx.props.queue].fetch(new Request(request, { headers }));
  },
};
`

func queueDelays(m *layout.Manifest) ([]node, error) {
	var bindings []node
	seen := map[string]bool{}
	for _, p := range m.Producers {
		if p.Delay == 0 || seen[p.Queue] {
			continue
		}
		seen[p.Queue] = true
		to, err := designator(serviceQueues, "", map[string]string{"queue": p.Queue})
		if err != nil {
			return nil, err
		}
		bindings = append(bindings, binding(p.Queue, "service", to))
	}
	if len(bindings) == 0 {
		return nil, nil
	}
	module := object(field{"name", text("delays.js")}, field{"esModule", text(delaysModule)})
	return []node{object(field{"name", text(serviceDelays)}, field{"worker", object(
		field{"modules", list(module)}, field{"compatibilityDate", text(servicesDate)}, field{"bindings", list(bindings...)})})}, nil
}

// crons gives each expression a schedule of its own, an object named by it. So a
// changed list leaves what it still has alone, and what is new is due from the
// start of the new process on, though the old one may still have the others.
func crons(s *Spec) ([]node, error) {
	m := s.Deployment.Manifest
	if len(m.Crons) == 0 || s.Trial {
		return nil, nil
	}
	all := map[string][]string{}
	bindings := []node{binding("SCHEDULE", "durableObjectNamespace", text("Schedule"))}
	for _, c := range m.Crons {
		all[c] = []string{c}
		bindings = append(bindings, binding(c, "service", text(serviceWorker)))
	}
	expressions, err := jsonBinding("CRONS", all)
	if err != nil {
		return nil, err
	}
	return []node{inside{service: serviceCron, bundled: "cron.js", flags: []string{extraHandlers}, class: "Schedule",
		bindings: append(bindings, expressions)}.render()}, nil
}

// workflowLimits is what the runtime's service is told of a workflow.
type workflowLimits struct {
	Steps     int64              `json:"steps,omitempty"`
	Retention *workflowRetention `json:"retention,omitempty"`
}

type workflowRetention struct {
	Finished string `json:"success,omitempty"`
	Failed   string `json:"error,omitempty"`
}

func workflows(s *Spec) ([]node, error) {
	m := s.Deployment.Manifest
	if len(m.Workflows) == 0 {
		return nil, nil
	}
	all := map[string]workflowLimits{}
	var bindings []node
	for _, w := range m.Workflows {
		l := workflowLimits{Steps: w.Steps}
		if w.KeepFinished != "" || w.KeepFailed != "" {
			l.Retention = &workflowRetention{w.KeepFinished, w.KeepFailed}
		}
		all[w.Name] = l
		bindings = append(bindings, binding("workflow:"+w.Name, "durableObjectNamespace",
			object(field{"className", text(workflowKey + w.Name)}, field{"serviceName", text(serviceWorker)})))
	}
	limits, err := jsonBinding("WORKFLOWS", all)
	if err != nil {
		return nil, err
	}
	return []node{inside{service: serviceWorkflows, bundled: "workflows.js", flags: workflowsFlags(m),
		bindings: append(bindings, limits)}.render()}, nil
}

// The engine says why a run ended with an error that is not to be retried as the
// Worker's own compatibility date has it: in the error's words from a date on, in
// words of its own before.
const (
	ownErrorsFrom = "2026-05-14"
	ownErrors     = "workflows_preserve_non_retryable_error_message"
	otherErrors   = "workflows_replace_non_retryable_error_message"
)

func workflowsFlags(m *layout.Manifest) []string {
	switch {
	case slices.Contains(m.CompatibilityFlags, otherErrors):
	case slices.Contains(m.CompatibilityFlags, ownErrors) || m.CompatibilityDate >= ownErrorsFrom:
		return []string{ownErrors}
	}
	return nil
}
