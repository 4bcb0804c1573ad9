package server_test

import (
	"testing"

	"github.com/scafo/scafo/internal/bucket"
	"github.com/scafo/scafo/internal/bucket/buckettest"
	"github.com/scafo/scafo/internal/bucket/qualify"
)

func TestSuiteEmbedded(t *testing.T) {
	e, _ := ensure(t, t.TempDir())
	buckettest.Suite(t, func(t *testing.T) bucket.Bucket { return open(t, e) })
	if err := qualify.Prove(t.Context(), open(t, e), "prove/"); err != nil {
		t.Error(err)
	}
}

func TestSuitePlainVersitygw(t *testing.T) {
	e := plain(t)
	// It reads the ETag by name, and then opens the file by name.
	buckettest.Suite(t, func(t *testing.T) bucket.Bucket { return open(t, e) }, buckettest.LaggingETags())
	if err := qualify.Prove(t.Context(), open(t, e), "prove/"); err != nil {
		t.Error(err)
	}
}
