// Gomemcache with its default settings. Arguments: PORT, a plan (load.py), all of whose threads are goroutines of this process.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

type step struct {
	Name        string   `json:"name"`
	At          float64  `json:"at"`
	Seconds     float64  `json:"seconds"`
	Keys        []string `json:"keys"`
	TTL         int32    `json:"ttl"`
	Compute     float64  `json:"compute"`
	Think       float64  `json:"think"`
	DeleteEvery float64  `json:"delete_every"`
}

type result struct {
	Computed int       `json:"computed"`
	Ms       []float64 `json:"ms"`
	Errors   []string  `json:"errors"`
}

type plan struct {
	Start     float64 `json:"start"`
	Processes int     `json:"processes"`
	Threads   int     `json:"threads"`
	Steps     []step  `json:"steps"`
}

var (
	lock    sync.Mutex
	results = map[string]*result{}
)

func valueOf(key string) string { return strings.Repeat("the value of "+key+" ", 20) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

func sleepUntil(moment float64) { time.Sleep(seconds(moment - now())) }

// An error is counted, and its keys are computed as if they were missing.
func request(c *memcache.Client, s step) {
	begun := time.Now()
	found, err := c.GetMulti(s.Keys)
	missing := []string{}
	for _, key := range s.Keys {
		item, ok := found[key]
		if !ok {
			missing = append(missing, key)
		} else if string(item.Value) != valueOf(key) {
			err = fmt.Errorf("wrong: %s", key)
		}
	}
	if len(missing) > 0 {
		lock.Lock()
		results[s.Name].Computed += len(missing)
		lock.Unlock()
		time.Sleep(seconds(s.Compute))
		for _, key := range missing {
			if e := c.Set(&memcache.Item{Key: key, Value: []byte(valueOf(key)), Expiration: s.TTL}); e != nil {
				err = e
			}
		}
	}
	lock.Lock()
	defer lock.Unlock()
	r := results[s.Name]
	r.Ms = append(r.Ms, float64(time.Since(begun).Nanoseconds())/1e6)
	if err != nil {
		r.Errors = append(r.Errors, err.Error())
	}
}

func act(c *memcache.Client, p plan) {
	for _, s := range p.Steps {
		sleepUntil(p.Start + s.At)
		for {
			request(c, s)
			time.Sleep(seconds(s.Think))
			if now() >= p.Start+s.At+s.Seconds {
				break
			}
		}
	}
}

func deleter(c *memcache.Client, p plan) {
	for _, s := range p.Steps {
		if s.DeleteEvery == 0 {
			continue
		}
		for at := p.Start + s.At + s.DeleteEvery; at < p.Start+s.At+s.Seconds; at += s.DeleteEvery {
			sleepUntil(at)
			for _, key := range s.Keys {
				if err := c.Delete(key); err != nil && err != memcache.ErrCacheMiss {
					lock.Lock()
					results[s.Name].Errors = append(results[s.Name].Errors, err.Error())
					lock.Unlock()
				}
			}
		}
	}
}

func main() {
	var p plan
	if err := json.Unmarshal([]byte(os.Args[2]), &p); err != nil {
		panic(err)
	}
	for _, s := range p.Steps {
		results[s.Name] = &result{Ms: []float64{}, Errors: []string{}}
	}
	c := memcache.New("127.0.0.1:" + os.Args[1])
	var done sync.WaitGroup
	for n := 0; n < p.Processes*p.Threads; n++ {
		done.Add(1)
		go func() { defer done.Done(); act(c, p) }()
	}
	done.Add(1)
	go func() { defer done.Done(); deleter(c, p) }()
	done.Wait()
	out, _ := json.Marshal(results)
	fmt.Println(string(out))
}
