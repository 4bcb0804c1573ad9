// Package system has the proofs that run the real programs: a store, nodes,
// runtimes and an ingress, as a user starts them. They are behind the build tag
// system: `make test-system`.
package system
