package main

import (
	"fmt"
	"strconv"
	"strings"

	scafocaddy "github.com/scafo/scafo/caddy"
)

// firstSocket is the file descriptor of the first socket that systemd hands on.
const firstSocket = 3

// handedOn takes the listening sockets that whoever started this program hands on, by
// systemd's protocol (sd_listen_fds). Two ingresses with the same sockets can be replaced
// one after the other, and no visitor is refused.
func handedOn(o *scafocaddy.Options, pid int, getenv func(string) string) error {
	if getenv("LISTEN_PID") != strconv.Itoa(pid) {
		return nil // none, or they are another process's
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n < 0 {
		return fmt.Errorf("LISTEN_FDS is %q, and not a number of sockets", getenv("LISTEN_FDS"))
	}
	var names []string
	if s := getenv("LISTEN_FDNAMES"); s != "" {
		names = strings.Split(s, ":")
	}
	for i := range n {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		switch {
		case name == "http" && o.HTTPSocket == 0, o.HTTPOnly && n == 1:
			o.HTTPSocket = firstSocket + i
		case name == "https" && o.HTTPSSocket == 0 && !o.HTTPOnly:
			o.HTTPSSocket = firstSocket + i
		default:
			return fmt.Errorf("a socket is handed on as %q: name one of them http and one https (FileDescriptorName=)", name)
		}
	}
	return nil
}
