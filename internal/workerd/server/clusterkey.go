package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scafo/scafo/internal/bucket"
)

// Where the cluster lies under the application's prefix: workerd's own state
// below stateKey, beside the secret that its members share.
const (
	stateKey  = "cluster/state"
	secretKey = "cluster/secret.json"
)

// minSecret is the least length that workerd takes.
const minSecret = 32

type clusterSecret struct {
	V   int    `json:"v"`
	Key string `json:"key"`
}

// clusterKey is the secret of the application's cluster, made by whoever comes
// first. It appears in no log and no answer.
func clusterKey(ctx context.Context, b bucket.Bucket) (string, error) {
	for range 3 {
		o, err := b.Get(ctx, secretKey)
		if err == nil {
			var s clusterSecret
			if err := json.Unmarshal(o.Body, &s); err != nil || s.V != 1 || len(s.Key) < minSecret {
				return "", errors.New("the cluster's secret in the bucket cannot be read by this release")
			}
			return s.Key, nil
		}
		if !errors.Is(err, bucket.ErrNotFound) {
			return "", fmt.Errorf("the cluster's secret: %w", err)
		}
		var raw [32]byte
		if _, err := rand.Read(raw[:]); err != nil {
			return "", err
		}
		body, err := json.Marshal(clusterSecret{V: 1, Key: hex.EncodeToString(raw[:])})
		if err != nil {
			return "", err
		}
		// Whatever became of the write, what lies there is the secret.
		if _, err := b.Create(ctx, secretKey, body); err != nil && !errors.Is(err, bucket.ErrRefused) && !errors.Is(err, bucket.ErrUnknown) {
			return "", fmt.Errorf("the cluster's secret: %w", err)
		}
	}
	return "", errors.New("the cluster's secret could not be made")
}
