package project

import (
	"regexp"
	"slices"
	"strings"

	"github.com/scafo/scafo/internal/workerd/layout"
	"github.com/scafo/scafo/internal/wrangler"
)

// The limits of the services that come with the runtime; those of a message's or a
// value's size are the runtime's own, at the time of the call.
const (
	maxID          = 256    // bytes of the id of a namespace or a database
	maxBatchSize   = 100    // messages
	maxBatchWait   = 60     // seconds
	maxRetries     = 100    // of one message
	maxDelay       = 86_400 // seconds
	maxConcurrency = 250
	maxSteps       = 25_000 // of one run of a workflow
)

var (
	queueName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	workflowName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
	retention    = regexp.MustCompile(`^\d+(\.\d+)? (millisecond|second|minute|hour|day|week|month|year)s?$`)
)

// anotherWorker is what to do instead of reaching into another application.
const anotherWorker = "applications do not reach into one another: call its address with fetch(), or bring the code into this one"

// takeServices are the keys of the services, by name.
func (c *Config) takeServices(s *servicesAt) map[string]func(*wrangler.Value) error {
	return map[string]func(*wrangler.Value) error{
		"triggers":      c.readTriggers,
		"kv_namespaces": c.readKV,
		"d1_databases":  c.readD1,
		"queues":        c.readQueues,
		"workflows":     func(v *wrangler.Value) error { return c.readWorkflows(v, s) },
		"services":      func(v *wrangler.Value) error { return c.readEntries(v, s) },
	}
}

// servicesAt are names of scripts that can only be judged once the script's own is
// known.
type servicesAt struct {
	scripts []script
}

type script struct {
	at   *wrangler.Value
	name string
}

// check holds every named script to the project's own.
func (s *servicesAt) check(own string) error {
	for _, x := range s.scripts {
		if x.name != own {
			return x.at.Errorf("%q is another Worker: %s", x.name, anotherWorker)
		}
	}
	return nil
}

// own is the handler of a key that names the Worker that has what is bound.
func (s *servicesAt) own(what string) func(*wrangler.Value) error {
	return func(v *wrangler.Value) error {
		name, err := v.Text(what)
		s.scripts = append(s.scripts, script{v, name})
		return err
	}
}

// cloud refuses a key with what it is good for at Cloudflare alone.
func cloud(v *wrangler.Value) error { return v.Errorf("the key %s", onlyCloudflare) }

// binding begins the handlers of one item of a list of bindings.
func binding(what string, name *string, rest map[string]func(*wrangler.Value) error) map[string]func(*wrangler.Value) error {
	rest["binding"] = wrangler.Into("the binding of "+what, name)
	for _, k := range []string{"remote", "experimental_remote"} {
		rest[k] = cloud
	}
	return rest
}

func (c *Config) readTriggers(v *wrangler.Value) error {
	return v.Object("triggers", map[string]func(*wrangler.Value) error{
		"crons": func(v *wrangler.Value) error {
			return v.Each("triggers.crons", func(item *wrangler.Value) error {
				s, err := item.Text("an item of triggers.crons")
				if err != nil {
					return err
				}
				expression, err := wrangler.CheckCron(s)
				if err != nil {
					return item.Errorf("triggers.crons %q: %v", s, err)
				}
				if !slices.Contains(c.Services.Crons, expression) {
					c.Services.Crons = append(c.Services.Crons, expression)
				}
				return nil
			})
		},
	})
}

func (c *Config) readKV(v *wrangler.Value) error {
	return v.Each("kv_namespaces", func(item *wrangler.Value) error {
		var s layout.Store
		const what = "an item of kv_namespaces"
		err := item.Object(what, binding(what, &s.Binding, map[string]func(*wrangler.Value) error{
			"id":         wrangler.Into("the id of a KV namespace", &s.ID),
			"preview_id": cloud,
		}))
		if err != nil {
			return err
		}
		c.Services.KV = append(c.Services.KV, identified(s, ""))
		return checkStore(item, what, c.Services.KV)
	})
}

func (c *Config) readD1(v *wrangler.Value) error {
	return v.Each("d1_databases", func(item *wrangler.Value) error {
		var s layout.Store
		var name string
		d := database{at: item, table: defaultTable}
		const what = "an item of d1_databases"
		err := item.Object(what, binding(what, &s.Binding, map[string]func(*wrangler.Value) error{
			"database_id":         wrangler.Into("database_id", &s.ID),
			"database_name":       wrangler.Into("database_name", &name),
			"preview_database_id": cloud, "database_internal_env": cloud, "jurisdiction": cloud,
			"migrations_dir":     func(v *wrangler.Value) (err error) { d.named = true; d.dir, err = v.Text("migrations_dir"); return err },
			"migrations_table":   wrangler.Into("migrations_table", &d.table),
			"migrations_pattern": cloud,
		}))
		if err != nil {
			return err
		}
		s = identified(s, name)
		d.id = s.ID
		c.Services.D1, c.databases = append(c.Services.D1, s), append(c.databases, d)
		return checkStore(item, what, c.Services.D1)
	})
}

// identified gives a store that names no id the next best name it has: Wrangler
// leaves the id out until the store exists at Cloudflare.
func identified(s layout.Store, name string) layout.Store {
	if s.ID == "" {
		s.ID = name
	}
	if s.ID == "" {
		s.ID = s.Binding
	}
	return s
}

// checkStore looks at the last of a list.
func checkStore(at *wrangler.Value, what string, all []layout.Store) error {
	switch s := all[len(all)-1]; {
	case s.Binding == "":
		return at.Errorf(`%s has no "binding"`, what)
	case len(s.ID) > maxID:
		return at.Errorf("%s: its id has more than %d bytes", what, maxID)
	}
	return nil
}

func (c *Config) readQueues(v *wrangler.Value) error {
	return v.Object("queues", map[string]func(*wrangler.Value) error{
		"producers": func(v *wrangler.Value) error { return v.Each("queues.producers", c.readProducer) },
		"consumers": func(v *wrangler.Value) error { return v.Each("queues.consumers", c.readConsumer) },
	})
}

// queue is the handler of a key that names a queue.
func queue(what string, to *string) func(*wrangler.Value) error {
	return func(v *wrangler.Value) (err error) {
		if *to, err = v.Text(what); err == nil && !queueName.MatchString(*to) {
			err = v.Errorf("%s %q: want letters, digits, hyphens and underscores, at most 63", what, *to)
		}
		return err
	}
}

func (c *Config) readProducer(item *wrangler.Value) error {
	var p layout.Producer
	const what = "an item of queues.producers"
	err := item.Object(what, binding(what, &p.Binding, map[string]func(*wrangler.Value) error{
		"queue": queue("the queue of a producer", &p.Queue),
		"delivery_delay": func(v *wrangler.Value) (err error) {
			p.Delay, err = v.Number("delivery_delay", 0, maxDelay)
			return err
		},
	}))
	if err == nil && (p.Binding == "" || p.Queue == "") {
		err = item.Errorf("%s needs binding and queue", what)
	}
	c.Services.Producers = append(c.Services.Producers, p)
	return err
}

func (c *Config) readConsumer(item *wrangler.Value) error {
	var q layout.Consumer
	const what = "an item of queues.consumers"
	err := item.Object(what, map[string]func(*wrangler.Value) error{
		"queue": queue("the queue of a consumer", &q.Queue),
		"type": func(v *wrangler.Value) error {
			s, err := v.Text("the type of a consumer")
			if err == nil && s != "worker" {
				err = v.Errorf(`the type of a consumer is %q: only "worker" is served; a queue cannot be pulled over HTTP`, s)
			}
			return err
		},
		"max_batch_size":    optional("max_batch_size", &q.MaxBatchSize, 1, maxBatchSize),
		"max_batch_timeout": optional("max_batch_timeout", &q.MaxBatchWait, 0, maxBatchWait),
		"max_retries":       optional("max_retries", &q.MaxRetries, 0, maxRetries),
		"retry_delay":       optional("retry_delay", &q.RetryDelay, 0, maxDelay),
		"max_concurrency":   optional("max_concurrency", &q.MaxConcurrency, 1, maxConcurrency),
		"dead_letter_queue": queue("dead_letter_queue", &q.DeadLetters),
	})
	switch {
	case err != nil:
	case q.Queue == "":
		err = item.Errorf("%s has no \"queue\"", what)
	case q.DeadLetters == q.Queue:
		err = item.Errorf("the queue %q is its own dead_letter_queue: letters would go round for good", q.Queue)
	case slices.ContainsFunc(c.Services.Consumers, func(o layout.Consumer) bool { return o.Queue == q.Queue }):
		err = item.Errorf("the queue %q has two consumers", q.Queue)
	}
	c.Services.Consumers = append(c.Services.Consumers, q)
	return err
}

// optional is the handler of a number that may be left out, as null too.
func optional(what string, to **int64, least, most int64) func(*wrangler.Value) error {
	return func(v *wrangler.Value) error {
		if v.Kind == 'n' {
			return nil
		}
		n, err := v.Number(what, least, most)
		*to = &n
		return err
	}
}

func (c *Config) readWorkflows(v *wrangler.Value, s *servicesAt) error {
	return v.Each("workflows", func(item *wrangler.Value) error {
		var w layout.Workflow
		const what = "an item of workflows"
		err := item.Object(what, binding(what, &w.Binding, map[string]func(*wrangler.Value) error{
			"name":              wrangler.Into("the name of a workflow", &w.Name),
			"class_name":        wrangler.Into("the class_name of a workflow", &w.Class),
			"script_name":       s.own("the script_name of a workflow"),
			"limits":            func(v *wrangler.Value) error { return readLimits(v, &w) },
			"default_retention": func(v *wrangler.Value) error { return readRetention(v, &w) },
			"jurisdiction":      cloud,
			"schedules": func(v *wrangler.Value) error {
				return v.Errorf("schedules: the runtime starts no workflow by itself: create it in scheduled(), by triggers.crons")
			},
			"concurrency": func(v *wrangler.Value) error {
				return v.Errorf("concurrency: the runtime does not bound how many of a workflow run at once: remove it, with what needs it")
			},
		}))
		switch {
		case err != nil:
			return err
		case w.Binding == "" || w.Name == "" || w.Class == "":
			return item.Errorf("%s needs binding, name and class_name", what)
		case !workflowName.MatchString(w.Name):
			return item.Errorf("the workflow %q: want letters, digits, hyphens and underscores, at most 64", w.Name)
		case !className.MatchString(w.Class):
			return item.Errorf("the workflow %q: %q is no name of a class", w.Name, w.Class)
		}
		for _, o := range c.Services.Workflows {
			if o.Name == w.Name || o.Class == w.Class {
				return item.Errorf("the workflows %q and %q have the same name or the same class", o.Name, w.Name)
			}
		}
		c.Services.Workflows = append(c.Services.Workflows, w)
		return nil
	})
}

func readLimits(v *wrangler.Value, w *layout.Workflow) error {
	return v.Object("the limits of a workflow", map[string]func(*wrangler.Value) error{
		"steps": func(v *wrangler.Value) (err error) {
			w.Steps, err = v.Number("limits.steps", 1, maxSteps)
			return err
		},
	})
}

func readRetention(v *wrangler.Value, w *layout.Workflow) error {
	keep := func(what string, to *string) func(*wrangler.Value) error {
		return func(v *wrangler.Value) (err error) {
			if *to, err = v.Text(what); err == nil && !retention.MatchString(*to) {
				err = v.Errorf(`%s %q: want a number and a unit, as "3 days"`, what, *to)
			}
			return err
		}
	}
	return v.Object("default_retention", map[string]func(*wrangler.Value) error{
		"success_retention": keep("success_retention", &w.KeepFinished),
		"error_retention":   keep("error_retention", &w.KeepFailed),
	})
}

func (c *Config) readEntries(v *wrangler.Value, s *servicesAt) error {
	return v.Each("services", func(item *wrangler.Value) error {
		var e layout.Entry
		const what = "an item of services"
		named := false
		own := s.own("the service of a binding")
		err := item.Object(what, binding(what, &e.Binding, map[string]func(*wrangler.Value) error{
			"service":    func(v *wrangler.Value) error { named = true; return own(v) },
			"entrypoint": wrangler.Into("the entrypoint of a service", &e.Entrypoint),
			"environment": func(v *wrangler.Value) error {
				return v.Errorf("environment: %s", anotherWorker)
			},
			"props": func(v *wrangler.Value) error {
				if v.Kind != '{' {
					return v.Errorf("the props of a service are %s, want an object", v.KindName())
				}
				e.Props = v.Raw
				return nil
			},
		}))
		switch {
		case err != nil:
			return err
		case e.Binding == "" || !named:
			return item.Errorf("%s needs binding and service", what)
		}
		if e.Entrypoint == "default" {
			e.Entrypoint = ""
		}
		c.Services.Bindings = append(c.Services.Bindings, e)
		return nil
	})
}

// serviceNames lists the bindings to services with the key that gives each.
func (c *Config) serviceNames() [][2]string {
	var out [][2]string
	for _, s := range c.Services.KV {
		out = append(out, [2]string{s.Binding, "kv_namespaces"})
	}
	for _, s := range c.Services.D1 {
		out = append(out, [2]string{s.Binding, "d1_databases"})
	}
	for _, s := range c.Services.Producers {
		out = append(out, [2]string{s.Binding, "queues"})
	}
	for _, s := range c.Services.Workflows {
		out = append(out, [2]string{s.Binding, "workflows"})
	}
	for _, s := range c.Services.Bindings {
		out = append(out, [2]string{s.Binding, "services"})
	}
	return out
}

// needWorker names what of the services needs a Worker, empty when nothing does.
func (c *Config) needWorker() string {
	var out []string
	for key, n := range map[string]int{
		"triggers": len(c.Services.Crons), "kv_namespaces": len(c.Services.KV), "d1_databases": len(c.Services.D1),
		"queues":    len(c.Services.Producers) + len(c.Services.Consumers),
		"workflows": len(c.Services.Workflows), "services": len(c.Services.Bindings),
	} {
		if n > 0 {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
