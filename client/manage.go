package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/scafo/scafo"
)

// set calls a setter of an application.
func (c *Client) set(ctx context.Context, name, action string, body any) (scafo.Application, error) {
	var a struct {
		Application scafo.Application `json:"application"`
	}
	err := c.call(ctx, &request{method: http.MethodPost, path: "/v1/applications/" + url.PathEscape(name) + "/" + action, json: body}, &a)
	return a.Application, err
}

// Block stops an application, and Unblock lets it go on. Admins may.
func (c *Client) Block(ctx context.Context, name string) (scafo.Application, error) {
	return c.set(ctx, name, "block", nil)
}

// Unblock takes a block away: what the application was is what it is again.
func (c *Client) Unblock(ctx context.Context, name string) (scafo.Application, error) {
	return c.set(ctx, name, "unblock", nil)
}

// SetLabels replaces all labels of an application. Admins may.
func (c *Client) SetLabels(ctx context.Context, name string, labels map[string]string) (scafo.Application, error) {
	if labels == nil {
		labels = map[string]string{}
	}
	return c.set(ctx, name, "labels", map[string]any{"labels": labels})
}

// Retire begins an application's retirement: it is served no more, and may be
// deleted once its grace period is over.
func (c *Client) Retire(ctx context.Context, name string) (scafo.Application, error) {
	return c.set(ctx, name, "retire", nil)
}

// Unretire ends an application's retirement.
func (c *Client) Unretire(ctx context.Context, name string) (scafo.Application, error) {
	return c.set(ctx, name, "unretire", nil)
}

// SetSelector sets which labels a node must have to run an application; nil lifts
// the constraint.
func (c *Client) SetSelector(ctx context.Context, name string, selector map[string]string) (scafo.Application, error) {
	return c.set(ctx, name, "selector", map[string]any{"selector": selector})
}

// SetReplicas sets how many nodes serve an application.
func (c *Client) SetReplicas(ctx context.Context, name string, replicas scafo.Replicas) (scafo.Application, error) {
	return c.set(ctx, name, "replicas", map[string]any{"replicas": replicas})
}

// FreezeAnswer is the answer of [Client.FreezeDeploys].
type FreezeAnswer struct {
	Freeze scafo.Freeze `json:"freeze"`
	// Created is false when deploys were frozen already; Freeze is the first one then.
	Created bool `json:"created"`
}

// FreezeDeploys stops deploy intake for the whole fleet. reason may be empty.
// Admins may.
func (c *Client) FreezeDeploys(ctx context.Context, reason string) (FreezeAnswer, error) {
	var a FreezeAnswer
	r := &request{method: http.MethodPost, path: "/v1/fleet/freeze"}
	if reason != "" {
		r.json = map[string]string{"reason": reason}
	}
	err := c.call(ctx, r, &a)
	return a, err
}

// LiftFreeze lets deploys in again, and reports whether they were frozen. Admins
// may.
func (c *Client) LiftFreeze(ctx context.Context) (lifted bool, err error) {
	var a struct {
		Lifted bool `json:"lifted"`
	}
	err = c.call(ctx, &request{method: http.MethodDelete, path: "/v1/fleet/freeze"}, &a)
	return a.Lifted, err
}

// Freeze is the fleet's freeze; not-found while deploys are taken.
func (c *Client) Freeze(ctx context.Context) (scafo.Freeze, error) {
	var a struct {
		Freeze scafo.Freeze `json:"freeze"`
	}
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/fleet/freeze"}, &a)
	return a.Freeze, err
}

// OperatorList is the answer of [Client.Operators].
type OperatorList struct {
	Operators []scafo.Operator `json:"operators"`
	Scoped    bool             `json:"scoped,omitempty"`
}

// Operators lists the trusted operator keys, by id: all of them to an admin, and
// to others their own, the one it replaces, and those that replace it.
func (c *Client) Operators(ctx context.Context) (OperatorList, error) {
	var l OperatorList
	err := c.call(ctx, &request{method: http.MethodGet, path: "/v1/operators"}, &l)
	return l, err
}

// Grant is a key to be trusted. What is left out is decided by the node: a
// replacement inherits the caller's tier and scope, a fresh key has the least tier
// and must be given a scope.
type Grant struct {
	ID           string          `json:"id"`
	PublicKey    scafo.PublicKey `json:"publicKey"`
	Role         scafo.Role      `json:"role,omitempty"`
	Supersedes   string          `json:"supersedes,omitempty"`
	Applications scafo.Scope     `json:"applications,omitempty"`
}

// AddOperator trusts a key. The same grant again is no failure.
func (c *Client) AddOperator(ctx context.Context, g Grant) (scafo.Operator, error) {
	var a struct {
		Operator scafo.Operator `json:"operator"`
	}
	err := c.call(ctx, &request{method: http.MethodPost, path: "/v1/operators", json: g}, &a)
	return a.Operator, err
}

// RemoveOperator revokes a key; not-found when there is none.
func (c *Client) RemoveOperator(ctx context.Context, id string) error {
	return c.call(ctx, &request{method: http.MethodDelete, path: "/v1/operators/" + url.PathEscape(id)}, nil)
}
