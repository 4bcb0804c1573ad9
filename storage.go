package scafo

import "time"

// The headers of the ingress's storage.
const (
	// StorageVersionHeader names the version of the storage protocol that a request
	// speaks; absent and empty mean [StorageVersion].
	StorageVersionHeader = "X-Scafo-Storage-Version"
	// LockHolderHeader names who asks for a lock, or gives it back: a request that
	// names its holder renews and frees what that holder has, and nothing else.
	LockHolderHeader = "X-Scafo-Lock-Holder"
	// LockSecondsHeader is, in a request, for how many seconds the lock is wanted at
	// the most, and in an answer, after how many it is free unless it is renewed.
	LockSecondsHeader = "X-Scafo-Lock-Seconds"
)

// StorageVersion is the version of the storage protocol that this release speaks.
const StorageVersion = "1"

// MaxStorageObject bounds one value of the ingress's storage, in bytes. What it
// keeps are certificates, keys and notes about them.
const MaxStorageObject = 1 << 20

// StorageStat is what is known of one key of the ingress's storage.
type StorageStat struct {
	Key string `json:"key"`
	// Size is the value's, in bytes; 0 for a key that only others are beneath.
	Size int64 `json:"size"`
	// Modified is the store's time of the last change, of the value or else of
	// anything beneath the key.
	Modified time.Time `json:"modified"`
	// IsTerminal is true for a key that has a value.
	IsTerminal bool `json:"isTerminal"`
}
