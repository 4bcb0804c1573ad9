// Package metrics is what a node tells Prometheus: numbers about itself, on a
// listener of their own. No name of an application is a label unless the operator
// asks for it, so that a fleet of thousands has as many series as a fleet of one.
package metrics

// Type is the kind of a metric, by Prometheus's word.
type Type string

// The kinds.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Definition is one metric. docs/reference/metrics.md is made from them.
type Definition struct {
	Name   string
	Type   Type
	Labels []string
	Help   string
	// Applications marks those that have the names of applications for a label.
	Applications bool
}

var (
	buildInfo = define("scafo_build_info", Gauge, "Always 1; the labels say which scafo and which runtime this node runs.", "version", "runtime")

	passes       = define("scafo_reconcile_passes_total", Counter, "Passes of the reconcile loop, by how they ended: ok or failed.", "result")
	passSeconds  = define("scafo_reconcile_pass_duration_seconds", Histogram, "How long a pass took.")
	lastGoodPass = define("scafo_reconcile_last_success_timestamp_seconds", Gauge, "When the last pass that did not fail ended, in Unix time; 0 before the first one.")

	leaseHeld  = define("scafo_lease_held", Gauge, "1 while this node holds the coordinator lease. Over all nodes the sum is 1, and 0 while nobody coordinates.")
	leaseKnown = define("scafo_lease_holder_known", Gauge, "1 while this node knows of a holder of the coordinator lease, itself or another.")
	leaseFence = define("scafo_lease_fence", Gauge, "Fence of the coordinator lease as this node last read it; it grows by one each time the lease is taken.")

	nodes        = define("scafo_nodes", Gauge, "Machines of the fleet as this node sees them, by state: live, draining, gone, new (registered, and never ran) or removed.", "state")
	applications = define("scafo_applications", Gauge, "Applications of the fleet, by state: deployed, undeployed, blocked, retired or deleting.", "state")
	placements   = define("scafo_placements", Gauge, "Applications that are placed on this node.")
	unplaced     = define("scafo_applications_unplaced", Gauge, "Applications that could not be placed in full. Only the coordinator has it.")
	placed       = define("scafo_placements_written_total", Counter, "Placements that this node decided and wrote as the coordinator.")

	unreadable = define("scafo_documents_unreadable", Gauge, "Documents of the registry that this node leaves alone: a newer release wrote them, or they are damaged.")

	processes     = define("scafo_processes", Gauge, "Runtime processes of this node, by state: starting, ready, draining, backoff or stopped.", "state")
	processEvents = define("scafo_process_events_total", Counter, "What happened to runtime processes: started, adopted (found running by a new daemon), start_failed, ready, silent (taken out of the routes), stopped, crashed, fenced (lost its lease, or ended unseen) or killed.", "event")

	deploys        = define("scafo_deploys_total", Counter, "Deploys that this node carried to their end, by state (deployed, failed) and, for those that failed, error code.", "state", "code")
	deploySeconds  = define("scafo_deploy_duration_seconds", Histogram, "Time from the acceptance of a deploy to its end, by state.", "state")
	deploysRefused = define("scafo_deploys_refused_total", Counter, "Deploys that the intake of this node refused, by error code.", "code")
	deploysActive  = define("scafo_deploys_active", Gauge, "Deploys that this node carries out now.")

	tokens = define("scafo_tokens_total", Counter, "Tokens that this node judged, by verdict: accepted, trust-mismatch, unavailable, or the reason of the refusal.", "verdict")

	bucketRequests = define("scafo_bucket_requests_total", Counter, "Requests that this node sent to the bucket, by kind (get, create, replace, put, delete, list) and by what they were for. Those of the runtimes are not among them.", "op", "purpose")
	bucketOutcomes = define("scafo_bucket_outcomes_total", Counter, "Answers of the bucket, by kind of request and outcome: ok, not_found, not_modified, refused (a condition did not hold, or another node was faster), unavailable, unknown (a write whose answer was lost), denied, invalid or other.", "op", "outcome")
	bucketSeconds  = define("scafo_bucket_request_duration_seconds", Histogram, "How long the bucket took to answer, by kind of request.", "op")

	applicationProcesses = perApplication("scafo_application_processes", Gauge, "Runtime processes of this node, by application and state. Only with metrics.applications.", "application", "state")
	applicationRestarts  = perApplication("scafo_application_restarts_total", Counter, "How often the processes of an application were started anew on this node. Only with metrics.applications.", "application")
)

var definitions []Definition

// Definitions are all metrics, in the order of the reference.
func Definitions() []Definition { return definitions }

func define(name string, t Type, help string, labels ...string) Definition {
	d := Definition{Name: name, Type: t, Labels: labels, Help: help}
	definitions = append(definitions, d)
	return d
}

func perApplication(name string, t Type, help string, labels ...string) Definition {
	d := define(name, t, help, labels...)
	d.Applications = true
	definitions[len(definitions)-1] = d
	return d
}
