package server

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Env is what the environment says. AWS_* is left to the SDK.
type Env struct {
	Node          string        // CELLD_NODE
	Watch         string        // CELLD_WATCH: the data directory
	AssetCache    string        // CELLD_ASSET_CACHE_DIR
	DeployPoll    time.Duration // CELLD_DEPLOY_POLL_S
	DeployMaxAge  time.Duration // CELLD_DEPLOY_MAX_AGE_S
	ShutdownTotal time.Duration // CELLD_SHUTDOWN_TOTAL_MS
	MaxRSS        int64         // CELLD_MAX_RSS_MB, in bytes; 0: no bound
	HardMemory    int64         // what the kernel holds a workerd to, in bytes; 0: no bound
	AnswerWithin  time.Duration // CELLD_WORKERD_ANSWER_S; 0: no bound
	Region        string        // AWS_REGION or AWS_DEFAULT_REGION
	LogLevel      string        // RUST_LOG
	WorkerdBin    string        // CELLD_WORKERD_BIN
	LeaseDivisor  int           // CELLD_WORKERD_UNSAFE_TIME_DIVISOR: tests only
	// PrivateNetworks are open to Workers (CELLD_WORKERD_PRIVATE_NETWORKS), but nothing
	// that Deny names (CELLD_WORKERD_DENY): addresses, networks and hosts.
	PrivateNetworks []netip.Prefix
	Deny            []string
	WaitOutLeases   bool // CELLD_WORKERD_WAIT_OUT_LEASES
}

// The values where the environment is silent.
const (
	DefaultDeployPoll    = 30 * time.Second
	DefaultDeployMaxAge  = 60 * time.Second
	DefaultShutdownTotal = 40 * time.Second
	DefaultAnswerWithin  = 100 * time.Second
)

// removed are variables that celld no longer knows and refuses, so that nobody
// believes them to have an effect. A trailing underscore stands for every name
// that begins so.
var removed = []string{
	"CELLD_VAR_", "CELLD_VARS_FILE", "CELLD_STORAGE_PROBE", "CELLD_SHUTDOWN_DRAIN_MS",
	"CELLD_DRAIN_TOKEN_WAIT_MS", "CELLD_LOG_",
}

// ParseEnv reads NAME=VALUE pairs. Every command does it first.
func ParseEnv(environ []string) (Env, error) {
	e := Env{DeployPoll: DefaultDeployPoll, DeployMaxAge: DefaultDeployMaxAge, ShutdownTotal: DefaultShutdownTotal, AnswerWithin: DefaultAnswerWithin, LeaseDivisor: 1, HardMemory: machineMemory() / 2}
	get := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if isRemoved(name) {
			return Env{}, fmt.Errorf("%s was removed: unset it", name)
		}
		get[name] = value
	}
	e.Node, e.Watch, e.AssetCache = get["CELLD_NODE"], get["CELLD_WATCH"], get["CELLD_ASSET_CACHE_DIR"]
	e.LogLevel = get["RUST_LOG"]
	e.WorkerdBin = get["CELLD_WORKERD_BIN"]
	e.WaitOutLeases = get["CELLD_WORKERD_WAIT_OUT_LEASES"] == "1"
	if e.Region = get["AWS_REGION"]; e.Region == "" {
		e.Region = get["AWS_DEFAULT_REGION"]
	}
	if d := get["CELLD_DURABILITY"]; d != "" && d != "bucket" && d != "fleet" {
		return Env{}, fmt.Errorf("CELLD_DURABILITY=%s: it is bucket or fleet", d)
	}
	var err error
	if e.PrivateNetworks, err = parseNetworks(get["CELLD_WORKERD_PRIVATE_NETWORKS"]); err != nil {
		return Env{}, err
	}
	e.Deny = strings.FieldsFunc(get["CELLD_WORKERD_DENY"], func(r rune) bool { return r == ',' || r == ' ' })
	number := func(name string, least, most int64, set func(int64)) {
		v, ok := get[name]
		if !ok || v == "" || err != nil {
			return
		}
		n, perr := strconv.ParseInt(v, 10, 64)
		if perr != nil || n < least || n > most {
			err = fmt.Errorf("%s=%s: it is a whole number from %d to %d", name, v, least, most)
			return
		}
		set(n)
	}
	const day, dayMS = 86400, 86400_000
	nothing := func(int64) {} // held to its form, but workerd has its own value
	number("CELLD_TTL_MS", 1, dayMS, nothing)
	number("CELLD_READY_FLEET_GATE_MS", 0, dayMS, nothing)
	number("CELLD_DEPLOY_POLL_S", 1, 365*day, func(n int64) { e.DeployPoll = time.Duration(n) * time.Second })
	number("CELLD_DEPLOY_MAX_AGE_S", 0, day, func(n int64) { e.DeployMaxAge = time.Duration(n) * time.Second })
	number("CELLD_SHUTDOWN_TOTAL_MS", 0, dayMS, func(n int64) { e.ShutdownTotal = time.Duration(n) * time.Millisecond })
	number("CELLD_MAX_RSS_MB", 0, 1<<30, func(n int64) { e.MaxRSS, e.HardMemory = n<<20, int64(hardOver*float64(n<<20)) })
	number("CELLD_WORKERD_ANSWER_S", 0, day, func(n int64) { e.AnswerWithin = time.Duration(n) * time.Second })
	number("CELLD_WORKERD_UNSAFE_TIME_DIVISOR", 1, 1000, func(n int64) { e.LeaseDivisor = int(n) })
	if err != nil {
		return Env{}, err
	}
	return e, nil
}

func isRemoved(name string) bool {
	return slices.ContainsFunc(removed, func(r string) bool {
		return name == r || strings.HasSuffix(r, "_") && strings.HasPrefix(name, r)
	})
}

// machineMemory is how much memory the machine has, in bytes; 0 where it does not say.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
