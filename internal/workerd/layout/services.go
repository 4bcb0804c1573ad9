package layout

import "encoding/json"

// Services is what a deployment asks of the services that come with the runtime.
// What they keep is known by the names here and nothing else: the same id in the
// next deployment is the same data.
type Services struct {
	Crons []string `json:"crons,omitempty"`
	KV    []Store  `json:"kv_namespaces,omitempty"`
	D1    []Store  `json:"d1_databases,omitempty"`
	// Migrations are what D1 databases get before the deployment serves.
	Migrations []Migrations `json:"d1_migrations,omitempty"`
	Producers  []Producer   `json:"queue_producers,omitempty"`
	Consumers  []Consumer   `json:"queue_consumers,omitempty"`
	Workflows  []Workflow   `json:"workflows,omitempty"`
	Bindings   []Entry      `json:"services,omitempty"`
}

// Any reports whether anything is asked for.
func (s *Services) Any() bool { return s.Durable() || len(s.Bindings) > 0 }

// Durable reports whether any of it keeps state. Crons do: each remembers when it
// is due next, or several processes would run it each.
func (s *Services) Durable() bool {
	return len(s.Crons)+len(s.KV)+len(s.D1)+len(s.Producers)+len(s.Consumers)+len(s.Workflows) > 0
}

// Store is a KV namespace or a D1 database.
type Store struct {
	Binding string `json:"binding"`
	ID      string `json:"id"`
}

// Migrations are those of one D1 database, in the order in which they are applied.
type Migrations struct {
	Database string      `json:"database"` // its id
	Table    string      `json:"table"`    // where the database itself keeps which of them it has
	Files    []Migration `json:"files"`
}

// Migration is one of them: a file of SQL, known by its name for good.
type Migration struct {
	Name string `json:"name"`
	SQL  string `json:"sql"`
}

// Producer is a binding that sends to a queue.
type Producer struct {
	Binding string `json:"binding"`
	Queue   string `json:"queue"`
	Delay   int64  `json:"delivery_delay,omitempty"` // seconds, of messages that say none
}

// Consumer is how a queue is delivered to the Worker. What is nil has the
// runtime's default.
type Consumer struct {
	Queue          string `json:"queue"`
	MaxBatchSize   *int64 `json:"max_batch_size,omitempty"`
	MaxBatchWait   *int64 `json:"max_batch_timeout,omitempty"` // seconds
	MaxRetries     *int64 `json:"max_retries,omitempty"`
	RetryDelay     *int64 `json:"retry_delay,omitempty"` // seconds
	MaxConcurrency *int64 `json:"max_concurrency,omitempty"`
	DeadLetters    string `json:"dead_letter_queue,omitempty"`
}

// Workflow is a class of the Worker whose runs are resumed where they stopped.
type Workflow struct {
	Binding      string `json:"binding"`
	Name         string `json:"name"`
	Class        string `json:"class"`
	Steps        int64  `json:"steps,omitempty"`         // at most; 0: the runtime's default
	KeepFinished string `json:"keep_finished,omitempty"` // how long, as "3 days"
	KeepFailed   string `json:"keep_failed,omitempty"`
}

// Entry is a binding to an entry point of the Worker itself.
type Entry struct {
	Binding    string          `json:"binding"`
	Entrypoint string          `json:"entrypoint,omitempty"` // empty: the default one
	Props      json.RawMessage `json:"props,omitempty"`      // an object, what ctx.props is
}
