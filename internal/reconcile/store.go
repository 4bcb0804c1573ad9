package reconcile

// Store is the registry as the loop uses it.
type Store interface{}
