package celld

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/scafo/scafo"
)

// Credentials are what a runtime needs to reach the bucket. It does not read
// ~/.aws or single sign-on, so scafo resolves those and passes the result.
type Credentials struct {
	AccessKey    string
	SecretKey    string
	SessionToken string
	Region       string
	// Roles are the variables of a web identity or of a container role, by name
	// (see RoleVariables): the runtime renews those by itself. With them, the keys
	// above stay empty.
	Roles map[string]string
}

// RoleVariables are the variables that let a runtime fetch and renew
// credentials by itself.
var RoleVariables = []string{
	"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
	"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	"AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
	"AWS_STS_REGIONAL_ENDPOINTS", "AWS_ENDPOINT_URL_STS",
}

// PassedVariables are the variables of the node's own environment that a child
// gets when they are set. Everything else is left behind, every CELLD_* first of
// all: a removed one stops the runtime.
var PassedVariables = []string{"PATH", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// Durability is where a write must be before it is acknowledged.
const (
	DurabilityBucket = "bucket" // the default of scafo
	DurabilityFleet  = "fleet"  // restarting one node alone can lose acknowledged writes
)

// DeployPollS keeps the runtime from polling its pointer: scafo tells it.
const DeployPollS = 3600

// EnvParams are the variables that belong to one (machine, application uid).
type EnvParams struct {
	Node        string // CELLD_NODE: stable
	Watch       string // CELLD_WATCH: the data directory
	AssetCache  string // CELLD_ASSET_CACHE_DIR
	Durability  string // CELLD_DURABILITY; empty takes DurabilityBucket
	DeployPollS int    // CELLD_DEPLOY_POLL_S; 0 takes DeployPollS
	// Extra is the operator's celld.env. It wins over everything but the three
	// names above; see CheckExtra.
	Extra map[string]string
	// Inherit looks up the node's own environment for PassedVariables. Nil passes
	// none of them.
	Inherit func(name string) (string, bool)
}

// Env is a child's whole environment, made from nothing.
func Env(c Credentials, p EnvParams) []string {
	env := map[string]string{}
	set := func(name, value string) {
		if value != "" {
			env[name] = value
		}
	}
	for _, pair := range passed(p.Inherit) {
		name, value, _ := strings.Cut(pair, "=")
		set(name, value)
	}
	maps.Copy(env, c.Roles)
	set("AWS_ACCESS_KEY_ID", c.AccessKey)
	set("AWS_SECRET_ACCESS_KEY", c.SecretKey)
	set("AWS_SESSION_TOKEN", c.SessionToken)
	set("AWS_REGION", c.Region)
	if p.Durability == "" {
		p.Durability = DurabilityBucket
	}
	set("CELLD_DURABILITY", p.Durability)
	if p.DeployPollS == 0 {
		p.DeployPollS = DeployPollS
	}
	set("CELLD_DEPLOY_POLL_S", strconv.Itoa(p.DeployPollS))
	maps.Copy(env, p.Extra)
	set("CELLD_NODE", p.Node)
	set("CELLD_WATCH", p.Watch)
	set("CELLD_ASSET_CACHE_DIR", p.AssetCache)
	return Pairs(env)
}

// passed is what of PassedVariables is set, as NAME=VALUE.
func passed(inherit func(string) (string, bool)) []string {
	list := []string{}
	if inherit == nil {
		return list
	}
	for _, name := range PassedVariables {
		if v, ok := inherit(name); ok {
			list = append(list, name+"="+v)
		}
	}
	return list
}

// Pairs spells variables as NAME=VALUE, in order of their names.
func Pairs(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// removedVariables stop a runtime from 0.5 on when they are set. A trailing
// underscore means every name that begins so.
var removedVariables = []string{
	"CELLD_VAR_", "CELLD_VARS_FILE", "CELLD_STORAGE_PROBE", "CELLD_SHUTDOWN_DRAIN_MS",
	"CELLD_DRAIN_TOKEN_WAIT_MS", "CELLD_LOG_",
}

// Removed reports whether the runtime refuses to start with that variable set.
func Removed(name string) bool {
	return slices.ContainsFunc(removedVariables, func(r string) bool {
		return name == r || strings.HasSuffix(r, "_") && strings.HasPrefix(name, r)
	})
}

// CheckExtra holds celld.env to what a runtime can be given: no name that it
// refuses, and none of those that scafo sets for each application.
func CheckExtra(extra map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(extra[name], "\x00"):
			return scafo.Errorf(scafo.CodeInvalidInput, "celld.env: %q cannot name a variable", name)
		case Removed(name):
			return scafo.Errorf(scafo.CodeInvalidInput, "celld.env: %s was removed from celld, which would not start with it", name)
		case name == "CELLD_NODE" || name == "CELLD_WATCH" || name == "CELLD_ASSET_CACHE_DIR":
			return scafo.Errorf(scafo.CodeInvalidInput, "celld.env: scafo sets %s for each application itself", name)
		}
	}
	return nil
}
