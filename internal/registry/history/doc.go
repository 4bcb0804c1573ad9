// Package history holds the registry to what it promises to several nodes at once:
// its tests record what nodes asked of a real S3 server through a network that fails,
// and what they were answered, and look for one order in which a single node would have
// answered the same. There is nothing in it but tests.
package history
