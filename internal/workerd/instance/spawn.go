package instance

import (
	"os/exec"
	"runtime"
	"sync"
)

// A parent-death signal follows the thread that forked: when that thread ends,
// the child gets it though the process lives. So every process is started from
// one thread that is locked to a goroutine which never ends.
var spawner struct {
	once  sync.Once
	calls chan spawnCall
}

type spawnCall struct {
	cmd  *exec.Cmd
	done chan error
}

// start starts cmd from the thread that stays.
func start(cmd *exec.Cmd) error {
	spawner.once.Do(func() {
		spawner.calls = make(chan spawnCall)
		go func() {
			runtime.LockOSThread() // and never unlocked
			for c := range spawner.calls {
				c.done <- c.cmd.Start()
			}
		}()
	})
	c := spawnCall{cmd: cmd, done: make(chan error, 1)}
	spawner.calls <- c
	return <-c.done
}
