package supervise

import (
	"errors"
	"fmt"

	"github.com/scafo/scafo/internal/celld"
)

// describe says in words how a process ended.
func describe(x exit) string {
	switch {
	case x.unseen:
		return "an exit code that nobody saw"
	case x.Signal != "":
		return "signal " + x.Signal
	case x.Code == celld.ExitFenced:
		return fmt.Sprintf("exit code %d (it lost its lease)", x.Code)
	}
	return fmt.Sprintf("exit code %d", x.Code)
}

func healthOf(err error) health {
	switch {
	case err == nil:
		return healthOK
	case errors.Is(err, celld.ErrUnhealthy):
		return healthBusy
	}
	return healthSilent
}
