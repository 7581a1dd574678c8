# The Go tool, and the static program that it makes.
# needs: go
set -e
export GOCACHE=$SHARED/go GOFLAGS=-mod=mod GO111MODULE=on HOME=$PWD; printf 'package main\nimport ("fmt";"os";"os/exec";"sync")\nfunc main(){ var w sync.WaitGroup; for i:=0;i<20;i++ { w.Add(1); go func(){ defer w.Done(); os.ReadFile("/etc/passwd") }() }; w.Wait(); o,_:=exec.Command("echo","go").Output(); fmt.Print(string(o)) }\n' > h.go; go run h.go
