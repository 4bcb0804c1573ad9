package instance

import "github.com/scafo/scafo/internal/workerd/cacheapi"

// serviceCache is where the Worker's caches lead to.
const serviceCache = "cache"

// Cache is where a [cacheapi.Cache] listens, and the secret that it wants to hear.
type Cache struct {
	Address string // host and port on this machine
	Secret  string
}

func (c *Cache) service() node {
	secret := object(field{"name", text(cacheapi.SecretHeader)}, field{"value", text(c.Secret)})
	return object(field{"name", text(serviceCache)}, field{"external", object(
		field{"address", text(c.Address)},
		field{"http", object(field{"forwardedProtoHeader", text(cacheapi.SchemeHeader)}, field{"injectRequestHeaders", list(secret)})},
	)})
}

// designator names the service; empty where there is no cache.
func (c *Cache) designator() node {
	if c == nil {
		return ""
	}
	return text(serviceCache)
}
