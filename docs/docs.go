// Package docs holds the documents that programs print.
package docs

import _ "embed"

// OpenAPI describes the node API: an OpenAPI 3.1 document in YAML.
//
//go:embed reference/openapi.yaml
var OpenAPI []byte
