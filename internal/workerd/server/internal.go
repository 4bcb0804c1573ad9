package server

import (
	"encoding/json"
	"net/http"
	"os"
	"time"

	"github.com/scafo/scafo"
)

// internalHandler serves the internal listener. It asks nobody who they are:
// it belongs on loopback or a private network.
func (s *Server) internalHandler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, s.State()) })
	m.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) {
		o := s.Reload(r.Context())
		status := http.StatusOK
		switch o.Kind {
		case Failed:
			status = http.StatusUnprocessableEntity
		case Unavailable:
			status = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "1")
		}
		answer(w, status, o)
	})
	m.HandleFunc("POST /shutdown", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"ok": true})
		_ = http.NewResponseController(w).Flush()
		s.Stop()
	})
	return m
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller is gone, then
}

// State is the answer to GET /state.
type State struct {
	Program    string           `json:"program"`
	Version    string           `json:"program_version"`
	Node       string           `json:"node,omitempty"`
	PID        int              `json:"pid"`
	StartedAt  time.Time        `json:"started_at"`
	Ready      bool             `json:"ready"`
	Draining   bool             `json:"draining"`
	Deployment *DeploymentState `json:"deployment"`
	Refused    *Outcome         `json:"refused,omitempty"`
	StoreAway  bool             `json:"store_away,omitempty"` // only what needs no state is served
	RSS        int64            `json:"rss_bytes"`            // of this process and its workerds
	Requests   int              `json:"requests"`             // under way
	Restarts   int              `json:"restarts"`             // of workerds that died
	Processes  []ProcessState   `json:"processes"`
}

// DeploymentState is the deployment that is served.
type DeploymentState struct {
	Script     string `json:"script_name"`
	Version    string `json:"version"`
	Prefix     string `json:"prefix"`
	Generation int64  `json:"generation"`
	Swapping   bool   `json:"swapping"`
	Draining   int    `json:"draining"` // workerds that finish what they began
}

// ProcessState is one workerd.
type ProcessState struct {
	PID        int    `json:"pid"`
	Generation int64  `json:"generation"`
	Serving    bool   `json:"serving"`
	RSS        int64  `json:"rss_bytes"`
	Requests   int    `json:"requests"`
	Cluster    string `json:"cluster_address,omitempty"`
}

// State says what is going on.
func (s *Server) State() State {
	ready := s.ready()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{
		Program: Name, Version: scafo.Version, Node: s.o.Node, PID: os.Getpid(), StartedAt: s.startedAt.UTC(),
		Ready: ready, Draining: s.stopping, Refused: s.refused, RSS: s.rss(os.Getpid()), Restarts: s.restarts,
		Processes: []ProcessState{},
	}
	st.StoreAway = s.current != nil && s.current.standIn
	draining := 0
	for b := range s.backends {
		p := ProcessState{
			PID: b.proc.PID(), Generation: b.generation, Serving: b == s.current,
			RSS: s.rss(b.proc.PID()), Requests: b.requests(), Cluster: b.proc.ClusterAddr(),
		}
		if !p.Serving && b.ends() {
			draining++
		}
		st.RSS += p.RSS
		st.Requests += p.Requests
		st.Processes = append(st.Processes, p)
	}
	if a := s.served; a != nil {
		st.Deployment = &DeploymentState{
			Script: a.pointer.ScriptName, Version: a.pointer.Version, Prefix: a.pointer.Prefix,
			Generation: a.generation, Swapping: s.swapping, Draining: draining,
		}
	}
	return st
}
