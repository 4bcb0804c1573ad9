// Package server is celld-workerd without its publishing half: celld's command
// line over Cloudflare's workerd. It is a supervisor of workerd processes behind
// a listener of its own. A new deployment gets a new workerd beside the old one;
// the traffic moves once the new one is ready, and the old one drains. What
// workerd leaves unanswered becomes a 503 here, never a hang.
//
// The workerds end with the process that runs this package, however it ends;
// that process itself has no parent-death signal and outlives who started it.
package server
