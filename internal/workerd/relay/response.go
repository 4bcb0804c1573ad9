package relay

import (
	"bytes"
	"errors"
)

// response is the head of an answer.
type response struct {
	status  int
	head    int  // bytes, the empty line included
	closes  bool // the upstream closes the connection after it
	chunked bool
	length  int64 // of the body; -1: not said
}

var (
	errAnswer = errors.New("the answer is not understood")
	errLarge  = errors.New("the head of the answer is too large")
)

const statusSwitching = 101

// bodyless reports whether the answer has no body, whatever its head says.
func (r *response) bodyless(toHead bool) bool {
	return toHead || r.status == 204 || r.status == 304 || r.status < 200
}

// parse reads the head of an answer and appends it to out as the client gets it,
// without its last, empty line. The head is whole: b has its end.
func (r *response) parse(b []byte, toHead bool, out []byte) ([]byte, error) {
	end := bytes.Index(b, headEnd)
	*r = response{head: end + len(headEnd), length: -1}
	first := bytes.Index(b, crlf)
	if err := r.firstLine(b[:first]); err != nil {
		return out, err
	}
	out = append(append(out, b[:first]...), crlf...)
	lengths, encodings := 0, 0
	var length []byte
	dated := r.status < 200
	for rest := b[first+len(crlf) : end+len(crlf)]; len(rest) > 0; {
		i := bytes.Index(rest, crlf)
		text := rest[:i]
		rest = rest[i+len(crlf):]
		colon := bytes.IndexByte(text, ':')
		if colon <= 0 || !all(text[:colon], inToken) {
			return out, errAnswer
		}
		value := trim(text[colon+1:])
		if len(value) > 0 && !all(value, inValue) {
			return out, errAnswer
		}
		switch kindOf(text[:colon]) {
		case fieldLength:
			n, ok := decimal(value)
			if !ok || lengths > 0 && int64(n) != r.length {
				return out, errAnswer
			}
			lengths++
			r.length, length = int64(n), text
			continue
		case fieldEncoding:
			if encodings++; encodings > 1 || !fold(value, "chunked") {
				return out, errAnswer
			}
			r.chunked = true
			continue
		case fieldConnection:
			// It may name headers that are the connection's own. The runtime names none.
			switch {
			case fold(value, "close"):
				r.closes = true
			case !fold(value, "keep-alive") && r.status != statusSwitching:
				return out, errAnswer
			}
			continue
		case fieldDate:
			dated = true
		case fieldHop:
			continue
		}
		out = append(append(out, text...), crlf...)
	}
	if r.chunked {
		r.length = -1
	}
	switch {
	case r.status < 200 || r.status == 204:
	case r.chunked && !r.bodyless(toHead):
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	case r.length >= 0:
		out = append(append(out, length...), crlf...)
	}
	if !dated {
		out = appendDate(out)
	}
	return out, nil
}

// firstLine reads HTTP/1.1 SP 3DIGIT [SP reason].
func (r *response) firstLine(b []byte) error {
	const begins = "HTTP/1.1 "
	if !bytes.HasPrefix(b, []byte(begins)) || len(b) < len(begins)+3 {
		return errAnswer
	}
	code, reason := b[len(begins):len(begins)+3], b[len(begins)+3:]
	n, ok := decimal(code)
	if !ok || n < 100 || len(reason) > 0 && (reason[0] != ' ' || !all(reason, inValue)) {
		return errAnswer
	}
	r.status = n
	return nil
}

// chunks follows a chunked body and knows where it ends.
type chunks struct {
	state chunkState
	left  int64 // of the chunk's data
	size  int   // digits so far
	line  int   // bytes of the line so far
}

type chunkState int

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerLine
	trailerLF
	trailerEndLF
	chunksDone
)

const (
	maxSizeDigits = 15      // of a chunk's size, in hex
	maxChunkLine  = 4 << 10 // bytes of an extension or of a trailer
	maxTrailers   = 64 << 10
)

// follow consumes bytes of p and returns how many belong to the body.
func (c *chunks) follow(p []byte) (int, error) {
	i := 0
	for i < len(p) && c.state != chunksDone {
		if c.state == chunkData {
			n := min(int64(len(p)-i), c.left)
			i += int(n)
			if c.left -= n; c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		if err := c.step(p[i]); err != nil {
			return i, err
		}
		i++
	}
	return i, nil
}

// step takes one byte outside of a chunk's data.
func (c *chunks) step(b byte) error {
	switch c.state {
	case chunkSize:
		return c.sizeByte(b)
	case chunkExtension:
		if b == '\r' {
			c.state = chunkSizeLF
		} else if class[b]&inValue == 0 || c.tooLong(maxChunkLine) {
			return errAnswer
		}
	case chunkSizeLF:
		if b != '\n' {
			return errAnswer
		}
		if c.state = chunkData; c.left == 0 {
			c.state = trailerStart
		}
		c.size, c.line = 0, 0
	case chunkDataCR:
		return c.expect(b, '\r', chunkDataLF)
	case chunkDataLF:
		return c.expect(b, '\n', chunkSize)
	case trailerStart:
		if b == '\r' {
			c.state = trailerEndLF
			return nil
		}
		c.state = trailerLine
		return c.trailerByte(b)
	case trailerLine:
		return c.trailerByte(b)
	case trailerLF:
		return c.expect(b, '\n', trailerStart)
	case trailerEndLF:
		return c.expect(b, '\n', chunksDone)
	}
	return nil
}

func (c *chunks) expect(b, want byte, next chunkState) error {
	if b != want {
		return errAnswer
	}
	c.state = next
	return nil
}

func (c *chunks) tooLong(most int) bool {
	c.line++
	return c.line > most
}

func (c *chunks) sizeByte(b byte) error {
	d := hexDigit(b)
	switch {
	case d >= 0:
		if c.size++; c.size > maxSizeDigits {
			return errAnswer
		}
		if c.size == 1 {
			c.left = 0
		}
		c.left = c.left<<4 | int64(d)
	case c.size == 0:
		return errAnswer
	case b == '\r':
		c.state = chunkSizeLF
	case b == ';':
		c.state = chunkExtension
	default:
		return errAnswer
	}
	return nil
}

func (c *chunks) trailerByte(b byte) error {
	if b == '\r' {
		c.state = trailerLF
		return nil
	}
	if class[b]&inValue == 0 || c.tooLong(maxTrailers) {
		return errAnswer
	}
	return nil
}

func hexDigit(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b && b <= 'f':
		return int(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}
