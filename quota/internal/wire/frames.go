package wire

import (
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/runtime"
)

// framer divides a stream of a watch into messages.
type framer struct{ runtime.Framer }

// NewFrameReader implements runtime.Framer.
func (framer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return &frames{body: r, messages: jsontext.NewDecoder(r, lenient)}
}

type frames struct {
	body     io.ReadCloser
	messages *jsontext.Decoder
	// rest is what is not read yet of the message that was begun.
	rest []byte
}

// Read reads the next message, or what is left of one. io.ErrShortBuffer says that
// there is more of it.
func (f *frames) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		message, err := f.messages.ReadValue()
		if err != nil {
			return 0, plain(err)
		}
		f.rest = message
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	if len(f.rest) > 0 {
		return n, io.ErrShortBuffer
	}
	return n, nil
}

// Close implements io.Closer.
func (f *frames) Close() error { return f.body.Close() }

// plain is an error as whoever watches compares it: how a stream ended.
func plain(err error) error {
	for _, end := range []error{io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, end) {
			return end
		}
	}
	return err
}
