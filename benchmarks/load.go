// A cheap TLS origin, and clients that load a way to it. load.py does the same, for machines without Go.
//
//	load origin --certificate FILE             prints its port and serves until it is killed
//	load client --origin H:P [--proxy H:P] ... prints one line of JSON
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const eventInterval = 20 * time.Millisecond

var bodies = map[string][]byte{
	"/1k":   bytes.Repeat([]byte("x"), 1_000),
	"/100k": bytes.Repeat([]byte("x"), 100_000),
	"/100m": bytes.Repeat([]byte("x"), 100_000_000),
}

func main() {
	log.SetOutput(os.Stderr)
	if os.Args[1] == "origin" {
		flags := flag.NewFlagSet("origin", flag.ExitOnError)
		certificate := flags.String("certificate", "", "PEM file of certificate and key")
		flags.Parse(os.Args[2:])
		serveOrigin(*certificate)
		return
	}
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	var way way
	flags.StringVar(&way.origin, "origin", "", "host:port")
	flags.StringVar(&way.proxy, "proxy", "", "host:port; without it, the client connects by itself")
	authority := flags.String("ca", "", "PEM file of whom to trust")
	mode := flags.String("mode", "keepalive", "keepalive, connections, events or watches")
	path := flags.String("path", "/1k", "what to ask for")
	clients := flags.Int("clients", 1, "at the same time, each with an address of its own")
	seconds := flags.Float64("seconds", 3, "how long")
	flags.Parse(os.Args[2:])
	way.trust(*authority)
	way.request = fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", *path, way.origin)
	if *mode == "watches" {
		way.hold(*clients)
		return
	}
	report(way.load(*mode, *clients, time.Duration(*seconds*float64(time.Second))))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// serveOrigin answers with fixed bodies, with the credential it was shown, or with events without end.
func serveOrigin(certificate string) {
	handler := func(response http.ResponseWriter, request *http.Request) {
		if body, found := bodies[request.URL.Path]; found {
			response.Header().Set("Content-Length", strconv.Itoa(len(body)))
			response.Write(body)
			return
		}
		switch request.URL.Path {
		case "/credential":
			io.WriteString(response, request.Header.Get("Authorization"))
		case "/watch":
			response.(http.Flusher).Flush()
			<-request.Context().Done()
		case "/events":
			for range time.Tick(eventInterval) {
				fmt.Fprintln(response, time.Now().UnixNano())
				response.(http.Flusher).Flush()
				if request.Context().Err() != nil {
					return
				}
			}
		}
	}
	pair, err := tls.LoadX509KeyPair(certificate, certificate)
	check(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := http.Server{Handler: http.HandlerFunc(handler), ErrorLog: log.New(io.Discard, "", 0)}
	config := tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	check(server.Serve(tls.NewListener(listener, &config)))
}

// way is how a client reaches the origin.
type way struct {
	origin, proxy string
	config        *tls.Config
	request       []byte
}

func (w *way) trust(file string) {
	pem, err := os.ReadFile(file)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	host, _, err := net.SplitHostPort(w.origin)
	check(err)
	w.config = &tls.Config{RootCAs: roots, ServerName: host}
}

type connection struct {
	*tls.Conn
	reader *bufio.Reader
}

// open connects from an address of the client's own, as sandboxes have, and completes a whole handshake.
func (w *way) open(client int) connection {
	local := &net.TCPAddr{IP: net.IPv4(127, 1, byte(client/250), byte(client%250+1))}
	dialer := net.Dialer{LocalAddr: local}
	first := w.origin
	if w.proxy != "" {
		first = w.proxy
	}
	plain, err := dialer.Dial("tcp", first)
	check(err)
	if w.proxy != "" {
		fmt.Fprintf(plain, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", w.origin, w.origin)
		answer, err := http.ReadResponse(bufio.NewReader(plain), &http.Request{Method: "CONNECT"})
		check(err)
		if answer.StatusCode != http.StatusOK {
			log.Fatal("CONNECT: ", answer.Status)
		}
	}
	encrypted := tls.Client(plain, w.config)
	check(encrypted.Handshake())
	return connection{encrypted, bufio.NewReaderSize(encrypted, 64*1024)}
}

func (w *way) ask(c connection) *http.Response {
	_, err := c.Write(w.request)
	check(err)
	response, err := http.ReadResponse(c.reader, nil)
	check(err)
	if response.StatusCode != http.StatusOK {
		log.Fatal(response.Status)
	}
	return response
}

func (w *way) get(c connection) {
	_, err := io.Copy(io.Discard, w.ask(c).Body)
	check(err)
}

// load lets clients repeat what the mode says, and returns what each repetition took.
func (w *way) load(mode string, clients int, length time.Duration) ([]time.Duration, time.Duration) {
	taken := make([][]time.Duration, clients)
	var all sync.WaitGroup
	started := time.Now()
	for client := range clients {
		all.Add(1)
		go func() {
			defer all.Done()
			next := w.repeat(mode, client)
			for begin := time.Now(); time.Since(started) < length || taken[client] == nil; {
				delay := next()
				now := time.Now()
				if delay == 0 {
					delay = now.Sub(begin)
				}
				taken[client] = append(taken[client], delay)
				begin = now
			}
		}()
	}
	all.Wait()
	return slices.Concat(taken...), time.Since(started)
}

// repeat returns what a client does again and again; it returns how long that took if it knows better than
// its caller.
func (w *way) repeat(mode string, client int) func() time.Duration {
	if mode == "connections" {
		return func() time.Duration {
			c := w.open(client)
			w.get(c)
			c.NetConn().Close()
			return 0
		}
	}
	c := w.open(client)
	if mode == "keepalive" {
		return func() time.Duration { w.get(c); return 0 }
	}
	events := bufio.NewScanner(w.ask(c).Body)
	return func() time.Duration {
		events.Scan()
		sent, err := strconv.ParseInt(events.Text(), 10, 64)
		check(err)
		return time.Since(time.Unix(0, sent))
	}
}

// hold opens watches and keeps them until its input ends.
func (w *way) hold(clients int) {
	held := make([]connection, clients)
	for client := range clients {
		held[client] = w.open(client)
		w.ask(held[client])
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin)
	for _, c := range held {
		c.NetConn().Close()
	}
}

func report(taken []time.Duration, length time.Duration) {
	slices.Sort(taken)
	milliseconds := func(share float64) float64 {
		return float64(taken[int(float64(len(taken)-1)*share)].Microseconds()) / 1000
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"count":   float64(len(taken)),
		"seconds": length.Seconds(),
		"p50_ms":  milliseconds(0.5),
		"p99_ms":  milliseconds(0.99),
	}))
}
