package deletion

import "context"

// Claims gives up the hosts of one life of an application whose deletion has begun:
// those that its record lists, and of the known ones those that it claims. It returns
// the keys of the claims that it released, also beside an error.
type Claims interface {
	ReleaseClaims(ctx context.Context, app, uid string, known ...string) (released []string, err error)
}
