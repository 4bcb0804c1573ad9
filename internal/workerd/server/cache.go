package server

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/scafo/scafo/internal/workerd/cacheapi"
	"github.com/scafo/scafo/internal/workerd/instance"
)

// cacheTimeout bounds one request to the cache.
const cacheTimeout = 30 * time.Second

// cacheServer serves the caches of the Worker, on loopback, to its own workerds.
type cacheServer struct {
	at     *instance.Cache
	server *http.Server
	done   sync.WaitGroup // its one goroutine
}

// newCacheServer starts one. It stays empty, and costs next to nothing, until a
// Worker puts something in.
func newCacheServer(log *slog.Logger) (*cacheServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cacheServer{at: &instance.Cache{Address: l.Addr().String(), Secret: rand.Text()}}
	c.server = &http.Server{
		Handler: cacheapi.New(c.at.Secret), ReadTimeout: cacheTimeout, WriteTimeout: cacheTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	c.done.Go(func() {
		if err := c.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the Worker's caches are gone", "err", err)
		}
	})
	return c, nil
}

func (c *cacheServer) close() {
	_ = c.server.Close() // what it says of connections that it cuts is of no use
	c.done.Wait()
}
