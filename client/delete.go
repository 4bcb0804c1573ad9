package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// DeleteApplication removes an application with all that it kept. Unless forced, it
// must be retired, and have been for its grace period. each is told the keys that the
// call removed from the bucket, one by one, as the answer arrives; it may be nil.
//
// An answer that breaks off is an error, and the deletion goes on by itself: the call
// may be repeated until the application is not-found.
func (c *Client) DeleteApplication(ctx context.Context, name string, force bool, each func(key string) error) error {
	r := &request{method: http.MethodDelete, path: "/v1/applications/" + url.PathEscape(name)}
	if force {
		r.query = url.Values{"force": {"1"}}
	}
	res, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := deletedKeys(res.Body, each); err != nil {
		return fmt.Errorf("the answer of %s broke off; a deletion that has begun goes on: %w", res.Request.URL.Host, err)
	}
	return nil
}

// deletedKeys reads {"deleted":[…]} without holding it.
func deletedKeys(body io.Reader, each func(key string) error) error {
	dec := json.NewDecoder(body)
	found := false
	if err := expect(dec, json.Delim('{')); err != nil {
		return err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		if name != "deleted" {
			var other json.RawMessage
			if err := dec.Decode(&other); err != nil {
				return err
			}
			continue
		}
		found = true
		if err := expect(dec, json.Delim('[')); err != nil {
			return err
		}
		for dec.More() {
			var key string
			if err := dec.Decode(&key); err != nil {
				return err
			}
			if each == nil {
				continue
			}
			if err := each(key); err != nil {
				return err
			}
		}
		if err := expect(dec, json.Delim(']')); err != nil {
			return err
		}
	}
	if err := expect(dec, json.Delim('}')); err != nil {
		return err
	}
	if !found {
		return errors.New("it names no keys")
	}
	return nil
}

func expect(dec *json.Decoder, want json.Delim) error {
	t, err := dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && t != want {
		err = fmt.Errorf("%v stands where %v should", t, want)
	}
	return err
}
