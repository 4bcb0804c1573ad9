// Package node puts a node together: it opens the bucket, registers the machine,
// and runs the lease, the reconcile loop, the deploys and the API until it is told
// to go.
package node
