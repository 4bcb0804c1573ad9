package node

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scafo/scafo/internal/celld"
	"github.com/scafo/scafo/internal/config"
)

// roles answers as a container's endpoint, a token service and an instance's metadata
// service do.
func roles(w http.ResponseWriter, r *http.Request) {
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	switch path := r.URL.Path; {
	case path == "/container":
		fmt.Fprintf(w, `{"AccessKeyId":"from-container","SecretAccessKey":"s","Token":"t","Expiration":%q}`, expires)
	case path == "/latest/api/token":
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		io.WriteString(w, "token")
	case path == "/latest/meta-data/iam/security-credentials/":
		io.WriteString(w, "node")
	case strings.HasPrefix(path, "/latest/meta-data/iam/security-credentials/"):
		fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":"from-instance","SecretAccessKey":"s","Token":"t","Expiration":%q}`, expires)
	case path == "/" && r.FormValue("Action") == "AssumeRoleWithWebIdentity" && r.FormValue("WebIdentityToken") == "the-token":
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>from-web-identity</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, expires)
	default:
		http.NotFound(w, r)
	}
}

// A runtime is told the way to a role, and renews what it gets there for as long as it
// runs; a deploy gets keys and no way to more of them.
func TestRuntimesAreToldOfRoles(t *testing.T) {
	aws := httptest.NewServer(http.HandlerFunc(roles))
	defer aws.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	profile := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(profile, fmt.Appendf(nil, "[default]\nrole_arn = arn:aws:iam::1:role/p\nweb_identity_token_file = %s\n", token), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  map[string]string
		want celld.Credentials // of a runtime
		keys string            // the access key of a deploy
	}{
		"keys": {
			map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"},
			celld.Credentials{AccessKey: "a", SecretKey: "s"}, "a",
		},
		// Keys win in the chain: that there is a way to a role as well is of no use.
		"keys beside a role": {
			map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_CONTAINER_CREDENTIALS_FULL_URI": aws.URL + "/container"},
			celld.Credentials{AccessKey: "a", SecretKey: "s"}, "a",
		},
		"a web identity": {
			map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_ENDPOINT_URL_STS": aws.URL},
			celld.Credentials{Roles: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_ENDPOINT_URL_STS": aws.URL}},
			"from-web-identity",
		},
		// A runtime reads no profiles.
		"a web identity of a profile": {
			map[string]string{"AWS_CONFIG_FILE": profile, "AWS_ENDPOINT_URL_STS": aws.URL},
			celld.Credentials{AccessKey: "from-web-identity", SecretKey: "s", SessionToken: "t"}, "from-web-identity",
		},
		"a container's role": {
			map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws.URL + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret"},
			celld.Credentials{Roles: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws.URL + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret"}},
			"from-container",
		},
		"an instance's role": {
			map[string]string{"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": aws.URL},
			celld.Credentials{Roles: map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": aws.URL}},
			"from-instance",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range append([]string{"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}, celld.RoleVariables...) {
				t.Setenv(v, "")
			}
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
			t.Setenv("AWS_REGION", "eu-west-3")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			l := &config.Loaded{}
			l.Bucket.URL, l.Bucket.Endpoint = "s3://fleet", "http://127.0.0.1:1"
			s, err := OpenStore(t.Context(), l, "", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.RuntimeCredentials(t.Context())
			if err != nil || got.AccessKey != c.want.AccessKey || got.SecretKey != c.want.SecretKey || got.SessionToken != c.want.SessionToken ||
				!maps.Equal(got.Roles, c.want.Roles) || got.Region != "eu-west-3" {
				t.Errorf("a runtime gets %+v, %v; want %+v", got, err, c.want)
			}
			keys, err := s.Credentials(t.Context())
			if err != nil || keys.AccessKey != c.keys || len(keys.Roles) > 0 || keys.Region != "eu-west-3" {
				t.Errorf("a deploy gets %+v, %v", keys, err)
			}
			if target := s.Target("shop", "u1"); target.Region != "eu-west-3" {
				t.Errorf("the region of a runtime: %q", target.Region)
			}
		})
	}
}
