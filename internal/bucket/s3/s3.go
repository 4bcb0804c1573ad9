// Package s3 is the bucket driver for S3 and for stores that speak its protocol
// and honour its conditional writes.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/scafo/scafo/internal/bucket"
)

// Limits of one request. A caller's context may end it earlier.
const (
	dialTimeout = 10 * time.Second
	// headerTimeout is how long an answer may take to begin once the request is
	// out; the body has no bound of its own.
	headerTimeout = 30 * time.Second
	// idleConnections is how many connections wait for the next request.
	idleConnections = 64
	idleTimeout     = 90 * time.Second
	maxRedirects    = 3
	// renewAhead is how long before their end credentials that expire are replaced:
	// whoever they are passed on to has that much time left.
	renewAhead = 5 * time.Minute
)

// defaultRegion is used with an endpoint of one's own when nothing names a
// region: such stores seldom care, but a signature needs one.
const defaultRegion = "us-east-1"

// tokenMark begins a Page.Next, which carries the store's own continuation
// token: no key has this byte.
const tokenMark = "\x00"

// Config says which bucket, and how to reach it.
type Config struct {
	Bucket string
	// Prefix is put before every key, with a slash between them.
	Prefix string
	// Endpoint is a base URL; empty takes AWS's own for the region.
	Endpoint string
	Region   string
	// PathStyle puts the bucket's name into the path. It is always so for an
	// endpoint whose host is an IP address or localhost.
	PathStyle bool
	// Credentials; nil takes the SDK's standard chain.
	Credentials aws.CredentialsProvider
	// HTTPClient; nil takes one of the store's own.
	HTTPClient awss3.HTTPClient
}

// ParseURL takes "s3://name[/prefix]" apart.
func ParseURL(s string) (name, prefix string, err error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	if !ok {
		return "", "", fmt.Errorf("bucket URL %q does not begin with s3://", s)
	}
	name, prefix, _ = strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	if name == "" {
		return "", "", fmt.Errorf("bucket URL %q names no bucket", s)
	}
	if strings.ContainsAny(name, "?#@:") {
		return "", "", fmt.Errorf("bucket URL %q: %q is no bucket name", s, name)
	}
	if prefix != "" {
		if err := bucket.CheckKey(prefix); err != nil {
			return "", "", fmt.Errorf("bucket URL %q: prefix: %w", s, err)
		}
	}
	return name, prefix, nil
}

var _ bucket.Bucket = (*Store)(nil)

// Store is a bucket in S3.
type Store struct {
	client *awss3.Client
	creds  aws.CredentialsProvider
	name   string
	prefix string // empty, or ends with a slash
	region string
	idle   interface{ CloseIdleConnections() }
}

// Open resolves region and credentials; it sends nothing to the bucket itself.
func Open(ctx context.Context, c Config) (*Store, error) {
	if c.Bucket == "" {
		return nil, errors.New("s3: no bucket named")
	}
	prefix := strings.Trim(c.Prefix, "/")
	if prefix != "" {
		if err := bucket.CheckKey(prefix); err != nil {
			return nil, fmt.Errorf("s3: prefix: %w", err)
		}
		prefix += "/"
	}
	s := &Store{name: c.Bucket, prefix: prefix}
	cfg, err := load(ctx, c)
	if err != nil {
		return nil, err
	}
	client := c.HTTPClient
	if client == nil {
		own := newHTTPClient(cfg.HTTPClient)
		client, s.idle = own, own
	}
	// Signing would fetch them anyway; a missing credential is a better error here
	// than at the first request.
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil {
		return nil, &bucket.Error{Op: "open", Key: c.Bucket, Kind: bucket.ErrDenied, Err: fmt.Errorf("no credentials: %w", err)}
	}
	s.creds, s.region = cfg.Credentials, cfg.Region
	pathStyle := c.PathStyle
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return nil, fmt.Errorf("s3: endpoint %q is no http or https URL", c.Endpoint)
		}
		if h := u.Hostname(); h == "localhost" || net.ParseIP(h) != nil {
			pathStyle = true
		}
	}
	s.client = awss3.NewFromConfig(cfg, func(o *awss3.Options) {
		o.UsePathStyle = pathStyle
		o.HTTPClient = client
		// A second try of a conditional write would meet its own success.
		o.Retryer = aws.NopRetryer{}
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
	})
	return s, nil
}

func load(ctx context.Context, c Config) (aws.Config, error) {
	opts := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		// Otherwise uploads over TLS carry trailers, which some stores refuse.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = renewAhead }),
	}
	if c.Region != "" {
		opts = append(opts, config.WithRegion(c.Region))
	}
	if c.Credentials != nil {
		opts = append(opts, config.WithCredentialsProvider(c.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return cfg, fmt.Errorf("s3: configuration: %w", err)
	}
	if cfg.Region == "" {
		if c.Endpoint == "" {
			return cfg, errors.New("s3: no region: set bucket.region or AWS_REGION")
		}
		cfg.Region = defaultRegion
	}
	if cfg.Credentials == nil {
		return cfg, errors.New("s3: no credentials configured")
	}
	return cfg, nil
}

// newHTTPClient makes a client with our limits, whose idle connections can be
// closed. It trusts what the SDK's own client was configured to trust
// (AWS_CA_BUNDLE), and follows only the redirects that repeat a request as it
// was.
func newHTTPClient(configured aws.HTTPClient) *http.Client {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConns:          idleConnections,
		MaxIdleConnsPerHost:   idleConnections,
		ForceAttemptHTTP2:     true,
	}
	if sdk, ok := configured.(*awshttp.BuildableClient); ok {
		transport.TLSClientConfig = sdk.GetTransport().TLSClientConfig
	}
	return &http.Client{Transport: transport, CheckRedirect: repeatOnly}
}

func repeatOnly(r *http.Request, via []*http.Request) error {
	if len(via) <= maxRedirects && r.Response != nil {
		switch r.Response.StatusCode {
		case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			return nil
		}
	}
	return http.ErrUseLastResponse
}

// Region is the region that the store signs for.
func (s *Store) Region() string { return s.region }

// Bucket is the bucket's own name, without the prefix.
func (s *Store) Bucket() string { return s.name }

// Prefix stands before every key in the bucket; it is empty or ends with a
// slash.
func (s *Store) Prefix() string { return s.prefix }

// Credentials resolves the credentials, to pass on to runtimes. expires is zero
// for credentials that stay.
func (s *Store) Credentials(ctx context.Context) (accessKey, secret, session string, expires time.Time, err error) {
	c, err := s.creds.Retrieve(ctx)
	if err != nil {
		return "", "", "", time.Time{}, fmt.Errorf("s3: credentials: %w", err)
	}
	if c.CanExpire {
		expires = c.Expires
	}
	return c.AccessKeyID, c.SecretAccessKey, c.SessionToken, expires, nil
}

// Source says where the credentials come from.
type Source int

// The sources. Those of a role can be fetched and renewed by every process that is
// told of the role.
const (
	SourceKeys      Source = iota // keys, from wherever the chain found them
	SourceWebToken                // a role by the token of a web identity
	SourceContainer               // the role of a container, from its endpoint
	SourceInstance                // the role of an instance, from its metadata service
)

// Source resolves the credentials and says where they came from.
func (s *Store) Source(ctx context.Context) (Source, error) {
	c, err := s.creds.Retrieve(ctx)
	if err != nil {
		return SourceKeys, fmt.Errorf("s3: credentials: %w", err)
	}
	switch c.Source {
	case stscreds.WebIdentityProviderName:
		return SourceWebToken, nil
	case endpointcreds.ProviderName:
		return SourceContainer, nil
	case ec2rolecreds.ProviderName:
		return SourceInstance, nil
	}
	return SourceKeys, nil
}

// Close closes idle connections. The store stays usable.
func (s *Store) Close() {
	if s.idle != nil {
		s.idle.CloseIdleConnections()
	}
}

// request is one call under way: it learns whether anything can have reached the
// store.
type request struct {
	op, key string
	sent    atomic.Bool
}

// begin checks the key and watches for a connection. Until there is one, nothing
// was sent; after that, a write without an answer may have been applied.
func begin(ctx context.Context, op, key string) (context.Context, *request, error) {
	r := &request{op: op, key: key}
	if op != "list" {
		if err := bucket.CheckKey(key); err != nil {
			return ctx, r, r.fail(bucket.ErrInvalid, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return ctx, r, r.fail(bucket.ErrUnavailable, err)
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { r.sent.Store(true) },
	})
	return ctx, r, nil
}

func (r *request) fail(kind, cause error) error {
	return &bucket.Error{Op: r.op, Key: r.key, Kind: kind, Err: cause}
}

// Get implements bucket.Bucket.
func (s *Store) Get(ctx context.Context, key string) (*bucket.Object, error) {
	return s.GetIfChanged(ctx, key, "")
}

// GetIfChanged implements bucket.Bucket.
func (s *Store) GetIfChanged(ctx context.Context, key, etag string) (*bucket.Object, error) {
	ctx, r, err := begin(ctx, "get", key)
	if err != nil {
		return nil, err
	}
	in := &awss3.GetObjectInput{Bucket: &s.name, Key: aws.String(s.prefix + key)}
	if etag != "" {
		in.IfNoneMatch = &etag
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return nil, r.failed(err)
	}
	defer out.Body.Close() //nolint:errcheck // nothing is left to lose
	body, err := readAll(out.Body, aws.ToInt64(out.ContentLength))
	if err != nil {
		return nil, r.fail(bucket.ErrUnavailable, fmt.Errorf("reading the body: %w", err))
	}
	return &bucket.Object{
		Key: key, Body: body, ETag: aws.ToString(out.ETag),
		Modified: aws.ToTime(out.LastModified), Date: date(out.ResultMetadata),
	}, nil
}

// preallocate bounds what is set aside on the word of a Content-Length alone.
const preallocate = 16 << 20

func readAll(body io.Reader, size int64) ([]byte, error) {
	var b bytes.Buffer
	// One byte more than the body lets the buffer see its end without growing.
	b.Grow(int(min(max(size, 0), preallocate)) + bytes.MinRead)
	_, err := b.ReadFrom(body)
	return b.Bytes(), err
}

// date is the Date header of an answer, zero when it has none.
func date(m middleware.Metadata) time.Time {
	if raw, ok := awsmiddleware.GetRawResponse(m).(*smithyhttp.Response); ok {
		if t, err := http.ParseTime(raw.Header.Get("Date")); err == nil {
			return t
		}
	}
	return time.Time{}
}

// Create implements bucket.Bucket.
func (s *Store) Create(ctx context.Context, key string, body []byte) (string, error) {
	return s.write(ctx, "create", key, body, func(in *awss3.PutObjectInput) { in.IfNoneMatch = aws.String("*") })
}

// Replace implements bucket.Bucket.
func (s *Store) Replace(ctx context.Context, key, etag string, body []byte) (string, error) {
	if etag == "" || etag == "*" {
		// Neither names a version; an empty one would not be sent at all.
		if err := bucket.CheckKey(key); err != nil {
			return "", &bucket.Error{Op: "replace", Key: key, Kind: bucket.ErrInvalid, Err: err}
		}
		return "", &bucket.Error{Op: "replace", Key: key, Kind: bucket.ErrRefused, Err: errors.New("no ETag named")}
	}
	return s.write(ctx, "replace", key, body, func(in *awss3.PutObjectInput) { in.IfMatch = &etag })
}

// Put implements bucket.Bucket.
func (s *Store) Put(ctx context.Context, key string, body []byte) (string, error) {
	return s.write(ctx, "put", key, body, func(*awss3.PutObjectInput) {})
}

func (s *Store) write(ctx context.Context, op, key string, body []byte, condition func(*awss3.PutObjectInput)) (string, error) {
	ctx, r, err := begin(ctx, op, key)
	if err != nil {
		return "", err
	}
	in := &awss3.PutObjectInput{
		Bucket: &s.name, Key: aws.String(s.prefix + key),
		Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
		ContentType: aws.String("application/octet-stream"),
	}
	condition(in)
	out, err := s.client.PutObject(ctx, in)
	if err != nil {
		return "", r.failed(err)
	}
	if aws.ToString(out.ETag) == "" {
		return "", r.fail(bucket.ErrUnknown, errors.New("the store answered without an ETag"))
	}
	return *out.ETag, nil
}

// Delete implements bucket.Bucket.
func (s *Store) Delete(ctx context.Context, key string) error {
	ctx, r, err := begin(ctx, "delete", key)
	if err != nil {
		return err
	}
	_, err = s.client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &s.name, Key: aws.String(s.prefix + key)})
	if err != nil {
		if gone := smithy.APIError(nil); errors.As(err, &gone) && codesMissing[gone.ErrorCode()] {
			return nil
		}
		return r.failed(err)
	}
	return nil
}

// List implements bucket.Bucket.
func (s *Store) List(ctx context.Context, prefix string, o bucket.ListOptions) (bucket.Page, error) {
	ctx, r, err := begin(ctx, "list", prefix)
	if err != nil {
		return bucket.Page{}, err
	}
	in := &awss3.ListObjectsV2Input{Bucket: &s.name, Prefix: aws.String(s.prefix + prefix)}
	if o.Delimiter != "" {
		in.Delimiter = &o.Delimiter
	}
	if o.Max > 0 {
		in.MaxKeys = aws.Int32(int32(min(o.Max, 1000))) //nolint:gosec // at most 1000
	}
	if token, ok := strings.CutPrefix(o.After, tokenMark); ok {
		in.ContinuationToken = &token
	} else if o.After != "" {
		in.StartAfter = aws.String(s.prefix + o.After)
	}
	out, err := s.client.ListObjectsV2(ctx, in)
	if err != nil {
		return bucket.Page{}, r.failed(err)
	}
	var page bucket.Page
	for i := range out.Contents {
		c := &out.Contents[i]
		page.Objects = append(page.Objects, bucket.Info{
			Key: strings.TrimPrefix(aws.ToString(c.Key), s.prefix), ETag: aws.ToString(c.ETag),
			Size: aws.ToInt64(c.Size), Modified: aws.ToTime(c.LastModified),
		})
	}
	for _, p := range out.CommonPrefixes {
		page.Prefixes = append(page.Prefixes, strings.TrimPrefix(aws.ToString(p.Prefix), s.prefix))
	}
	if aws.ToBool(out.IsTruncated) {
		if aws.ToString(out.NextContinuationToken) == "" {
			return bucket.Page{}, r.fail(bucket.ErrUnavailable, errors.New("the store cut a listing off without saying how to go on"))
		}
		page.Next = tokenMark + *out.NextContinuationToken
	}
	return page, nil
}
