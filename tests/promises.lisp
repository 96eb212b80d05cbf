;;;; The promises of README.md and of the chapters, each with the test that shows it and a mutant
;;;; that breaks it (mutant.lisp). A promise is quoted from its chapter, so that a change of the
;;;; sentence needs a look at its row, too. Those without a chapter are invariants of a source.
;;;;
;;;;   (PROMISE
;;;;    SUITE TEST
;;;;    FILE OLD NEW)
;;;;
;;;; OLD occurs in FILE once; the mutant has NEW in its place.

(in-package #:clgrpc.tests.mutants)

(define-promises "README.md"
  ("An error in a handler reaches its caller only as `:internal`"
   "server" "handler-error"
   "src/rpc/verdict.lisp" "(:handler-error :internal \"error in handler\")"
   "(:handler-error :unknown \"error in handler\")")
  ("one account for the memory of each peer"
   "base" "accounts-add-up"
   "src/base/memory/account.lisp" "(atomic-incf (account-held whole) change)"
   "(atomic-incf (account-held whole) 0)")
  ("no input costs the server much more than it costs its sender"
   "rest" "queries-have-limits"
   "src/web/rest/query.lisp" "(when (> (incf count) +most-parameters+)"
   "(when (> (incf count) 1000000)"))

(define-promises "doc/calls.md"
  ("A method without a handler is answered with `:unimplemented`"
   "transports" "unknown-methods-over-tcp"
   "src/rpc/verdict.lisp" "(:unknown-method :unimplemented" "(:unknown-method :internal")
  ("A second `reply` is a `misuse`, because its message would be lost"
   "transports" "calls-are-answered-once-over-tcp"
   "src/rpc/messaging.lisp" "(when (or (eq :ok (call-status call))" "(when (or nil")
  ("any other lambda list or keyword is a `misuse` where the handler is defined"
   "method" "handlers-get-no-keyword-but-call"
   "src/rpc/method/method.lisp" "(remove :call (accepted-keywords"
   "(intersection '(:nothing) (accepted-keywords")
  ("A call that a handler makes inherits the remaining time of the handled call"
   "transports" "nested-calls-have-the-time-that-is-left-over-tcp"
   "src/rpc/calling/stub.lisp" "(if *call* (call-deadline *call*) 0)" "0")
  ("`:max-receive-octets` and `:max-send-octets` replace the channel's limits for this call"
   "transports" "message-limits-of-a-call-over-tcp"
   "src/rpc/own-options.lisp"
   "(own-options-send-limit own-options) (limit :max-send-octets max-send-octets)"
   "(own-options-send-limit own-options) nil")
  ("Metadata is an alist of lower-case names and strings of printable ASCII"
   "status" "metadata-refused"
   "src/rpc/status/metadata.lisp"
   "(or (char<= #\\a char #\\z) (char<= #\\0 char #\\9) (find char \"_-.\"))"
   "(or (alphanumericp char) (find char \"_-.\"))")
  ("values of names that end in `-bin` are octets"
   "status" "metadata-refused"
   "src/rpc/status/metadata.lisp" "(unless (typep value '(vector octet))" "(unless value"))

(define-promises "doc/errors.md"
  ("the backend's message, details and trailers are not sent to the handler's caller"
   "transports" "errors-of-other-calls-over-tcp"
   "src/rpc/handler-error.lisp"
   "(and (typep error 'rpc-error) (not (of-another-call-p error call)))" "(typep error 'rpc-error)")
  ("If the request has not, any call is safe to repeat"
   "attempt" "what-no-server-has-seen-is-made-again"
   "src/rpc/attempt/retry.lisp"
   "(and (eq :server (attempt-failure-reach failure))
"
   "(and t
")
  ("If `REFUSED_STREAM`, or a GOAWAY that excludes the call, shows"
   "client" "refused-calls-are-made-again"
   "src/client/attempts/response.lisp"
   "(if refused :server :handler)))
        (:local"
   ":handler))
        (:local")
  ("the server has not processed it, the call is made again, once and within its deadline"
   "client" "who-refuses-again-means-it"
   "src/rpc/attempt/retry.lisp"
   "(or (null first-ns)
"
   "(or t
")
  ("it offers the restart `retry-call`, which makes the call again with the same arguments"
   "calling" "a-failed-call-may-be-made-again"
   "src/rpc/calling/stub.lisp" "(apply #'invoke channel method request options)" "nil")
  ("for its HTTP status or HTTP/2 error code"
   "client" "http-status-mapping"
   "src/client/attempts/status-mapping.lisp"
   "((429 502 503 504) :unavailable)" "((429 502 504) :unavailable)")
  ("A response without a gRPC status gets the status"
   "client" "not-a-grpc-response"
   "src/client/attempts/status-mapping.lisp" "(401 :unauthenticated) (403" "(401 :unknown) (403"))

(define-promises "doc/deadlines.md"
  ("its deadline is the earlier of its own `:timeout` and the deadline of the handled call"
   "calling" "the-earliest-deadline-counts"
   "src/rpc/calling/stub.lisp" "(earlier-deadline (earlier-deadline (or deadline 0)"
   "(max (earlier-deadline (or deadline 0)")
  ("when the deadline passes, the caller's end ends the call with `:deadline-exceeded`"
   "wire" "deadlines-end-calls"
   "src/wire/deadline.lisp"
   "timer (call-deadline call)))
  nil)"
   "timer (* 2 (call-deadline call))))
  nil)"))

(define-promises "doc/servers.md"
  ("Every service, and `\"\"` for the whole server, is `:serving` until the program sets another status"
   "services" "check-knows-the-servers-services"
   "src/services/health.lisp" "(change-status service name :serving :if-unknown t)"
   "(change-status service name :unknown :if-unknown t)")
  ("or the server stops"
   "services" "health-follows-the-drain"
   "src/services/health.lisp"
   "(or (service-stopping service)
                  (and"
   "(or nil
                  (and")
  ("A body longer than `:max-fallback-body-octets` (1 MB) is answered with 413"
   "server" "bodies-for-a-fallback-are-bounded"
   "src/http/exchange/exchange.lisp"
   "(let ((limit (options-max-fallback-body-octets (http-request-options request)))"
   "(let ((limit most-positive-fixnum)")
  ("gives running calls `:drain` seconds (10) to end, and then ends them with `:unavailable`"
   "server" "drain-ends-what-does-not-end"
   "src/rpc/verdict.lisp" "(:server-stopping :unavailable " "(:server-stopping :cancelled ")
  ("further calls are refused with `:resource-exhausted`"
   "abuse" "too-many-calls"
   "src/server/limits/load-limit.lisp" "(let* ((most (server-loop-max-open server-loop))"
   "(let* ((most (* 4 (server-loop-max-open server-loop)))"))

(define-promises "doc/addresses.md"
  ("A killed server leaves the socket's file in place: the next server replaces the file if no server answers on that socket"
   "loop" "abandoned-unix-files-are-replaced"
   "src/loop/names/unix.lisp"
   "(abandoned-p address)
         (not"
   "(not")
  ("The file never has wider permissions, not even for a moment"
   "loop" "unix-file-modes"
   "src/loop/names/unix.lisp" "(os:set-socket-mode socket mode)" "nil")
  ("each further wait is `:backoff-factor` times as long, up to `:backoff-maximum-seconds`"
   "loop" "each-wait-is-longer"
   "src/loop/back-off.lisp" "(min (* (back-off-seconds back-off) factor) most)"
   "(* (back-off-seconds back-off) factor)")
  ("A random part, up to `:backoff-jitter` of the wait, is added or subtracted"
   "loop" "each-wait-is-longer"
   "src/loop/back-off.lisp" "(- (random (+ 1d-9 (* 2 jitter)) random-state) jitter)" "jitter")
  ("`percentage` is above a number from 0 to 99 that each channel draws once"
   "client" "the-first-choice-that-fits-is-taken"
   "src/client/naming/choice.lisp" "(< number value)" "(<= number value)")
  ("`clientLanguage` names `common-lisp` or `lisp`"
   "client" "the-first-choice-that-fits-is-taken"
   "src/client/naming/choice.lisp" "'(\"common-lisp\" \"lisp\")" "'(\"common-lisp\")")
  ("A user and password in the URL are sent as they are"
   "client" "what-connect-says"
   "src/client/proxy/proxy-choice.lisp" "(decoded (if colon (subseq secret (1+ colon)) \"\"))"
   "(if colon (subseq secret (1+ colon)) \"\")")
  ("networks such as `10.0.0.0/8`"
   "client" "hosts-without-a-proxy"
   "src/client/proxy/proxy-choice.lisp" "(= (ash number (- bits width)) (ash base (- bits width)))"
   "(= number base)")
  ("The environment's proxy is not used for this machine"
   "client" "hosts-without-a-proxy"
   "src/client/proxy/proxy-choice.lisp"
   "(not (this-machine-p host))
"
   "t
")
  ("By default the addresses of a target are treated as one server"
   "client" "the-policy-is-the-users-the-configs-or-pick-first"
   "src/client/naming/current-config.lisp" "(config:default-policy-config :pick-first)"
   "(config:default-policy-config :round-robin)")
  ("over TLS its host is also the name that the server must prove"
   "client" "tls-proves-the-channels-authority"
   "src/client/network-channel.lisp"
   "(setf (resolver-own-host resolver) (authority-host (check-authority own)))"
   "(check-authority own)"))

(define-promises "doc/tls.md"
  ("Suites of TLS 1.2 that HTTP/2 forbids, or that"
   "os" "cipher-suites-that-are-none"
   "src/os/cipher-suite.lisp"
   "(format nil \"~{~A~^:~}~A\" older
                                                      *tls-1.2-exclusions*)"
   "(format nil \"~{~A~^:~}\" older)")
  ("With `:verify nil` a client does not verify the server's certificate"
   "client" "tls-without-verification"
   "src/os/tls-session.lisp" "(:none 0)" "(:none +ssl-verify-peer+)")
  ("call credentials are not sent over such a channel, just as over plaintext"
   "client" "credentials-are-refused-on-plaintext"
   "src/rpc/credentials/call-credentials.lisp"
   "(unless (or (null channel) (some #'identity (multiple-value-list (channel-secure-p channel))))"
   "(unless t"))

(define-promises "doc/codecs.md"
  ("A server answers a request in a codec that it does not have with the HTTP
status 415"
   "server" "codecs-on-the-wire"
   "src/server/dispatch.lisp" "(or codec :plain)" "(or codec :grpc)"))

(define-promises "doc/environment.md"
  ("a file of roots (PEM) for credentials without `:roots`, in place of the system's"
   "loop" "roots-of-the-environment"
   "src/loop/io/tls-credentials.lisp"
   "(sb-ext:posix-getenv \"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH\")" "nil")
  ("cipher suites in the order of preference, with colons between, in place of the defaults"
   "loop" "cipher-suites-of-the-environment"
   "src/loop/io/tls-credentials.lisp"
   "(sb-ext:posix-getenv \"GRPC_SSL_CIPHER_SUITES\")" "nil")
  ("`epoll`, the default, or `poll`; several names with commas between choose the first of them that exists"
   "loop.poll" "poller-of-the-environment"
   "src/loop/io/poller.lisp" "(sb-ext:posix-getenv \"GRPC_POLL_STRATEGY\")" "nil"))

(define-promises "doc/compression.md"
  ("Answers use only encodings that the client accepts"
   "server" "answers-as-the-client-accepts"
   "src/server/answer-compression.lisp" "(find encoding (server-call-accepted call))" "encoding")
  ("Messages shorter than the option `:compress-minimum-octets` (256) are sent uncompressed"
   "client" "compression-by-channel-and-call"
   "src/wire/encoding.lisp" "(<= (options-compress-minimum-octets options) size)" "t")
  ("messages that would not become shorter"
   "client" "compression-by-channel-and-call"
   "src/wire/encoding.lisp" "(or (eq compress t) (< (byte-buffer-end byte-buffer) end))" "t")
  ("an unknown encoding in a request"
   "server" "wrong-compression"
   "src/server/answer-compression.lisp" "(list :unimplemented text)" "(list :internal text)")
  ("a message flagged as compressed without `grpc-encoding`"
   "server" "wrong-compression"
   "src/rpc/verdict.lisp" "(:not-to-be-compressed :internal" "(:not-to-be-compressed :unknown"))

(define-promises "doc/fleets.md"
  ("Requests are kept until the call is committed"
   "transports" "an-answered-conversation-keeps-nothing-over-in-process"
   "src/inproc/relay.lisp"
   "(drop-kept relay)
  (setf (relay-committed relay) attempt"
   "(setf (relay-committed relay) attempt")
  ("only the most specific match counts"
   "config" "the-most-specific-entry-is-a-methods"
   "src/client/config/service-config.lisp"
   "(or (gethash path methods)
"
   "(or nil
")
  ("All known fields are checked before the config takes effect"
   "config" "a-method-has-one-policy"
   "src/client/config/retry-policy.lisp" "(when (and retry hedging)" "(when nil")
  ("An error names its position and the values that are allowed there"
   "config" "retry-policies"
   "src/client/config/retry-policy.lisp" "(member-path path name) \"must name"
   "path \"must name")
  ("After a wrong config from a resolver the channel keeps the previous one"
   "client" "a-bad-config-leaves-the-good-one-in-force"
   "src/client/naming/current-config.lisp" "(or (core-config core) (core-default-config core))"
   "(core-default-config core)")
  ("the longest time that a call may take; the earlier of this and the stub's `:timeout` counts"
   "client" "a-timeout-ends-waiting-calls"
   "src/client/naming/current-config.lisp"
   "(and timeout-ns
"
   "(and nil timeout-ns
")
  ("the stub's `:wait-for-ready`, given as `t` or `nil`, overrides it"
   "client" "the-config-says-who-waits-for-ready"
   "src/client/naming/current-config.lisp" "(if (eq :unset said)" "(if (null said)")
  ("the largest message sent and received; the channel's options bound it"
   "client" "limits-of-messages-are-the-smaller-of-both"
   "src/client/naming/current-config.lisp" "(if configured (min limit configured) limit)"
   "(or configured limit)")
  ("a call of the channel when that many are in flight (gRFC A32)"
   "client" "so-many-calls-are-in-flight"
   "src/client/picking/guarded-picker.lisp" "(>= (hash-table-count admitted) most)"
   "(> (hash-table-count admitted) most)")
  ("a call that would wait for a stream of a server when that many wait"
   "client" "so-many-calls-may-wait"
   "src/client/picking/guarded-picker.lisp"
   "(stream-queue-unpicked-count (core-stream-queue core)))
                  most)"
   "(stream-queue-unpicked-count (core-stream-queue core)))
                  (1+ most))")
  ("a call for a server that has that many calls"
   "client" "a-breaker-limits-calls"
   "src/client/picking/breaker.lisp" "(< calls most)" "(<= calls most)")
  ("out of at least `:breaker-min-calls`"
   "client" "a-share-is-of-enough-calls"
   "src/client/picking/breaker.lisp" "(>= calls (options-breaker-min-calls options))" "t")
  ("it is half open and lets one call through. If that call succeeds, or its answer begins, the breaker closes"
   "client" "a-breaker-opens-half-opens-and-closes"
   "src/client/picking/breaker.lisp"
   "(or (null trial) (eq call trial) (<= (breaker-until-ns breaker) now))" "t")
  ("If that call has no answer after another `:breaker-open-seconds`, the next call is tried"
   "client" "a-trial-without-an-answer-is-another-calls"
   "src/client/picking/breaker.lisp"
   "(or (null trial) (eq call trial) (<= (breaker-until-ns breaker) now))"
   "(or (null trial) (eq call trial))")
  ("A call is refused only if the policy has no server left"
   "client" "breakers-leave-calls-to-other-servers"
   "src/client/picking/guarded-picker.lisp" "(if (picker-p picker) +picks-past-breakers+ 1)" "1")
  ("of some servers chosen at random, the one with the fewest calls (A48)"
   "balance" "least-request-prefers-who-has-fewer-calls"
   "src/client/balance/least-request.lisp"
   "(and (< calls fewest) (breaker-passed-p subchannel call))" "(null best)")
  ("a child policy, without servers that fail more than others (A50)"
   "balance" "who-fails-too-often-is-ejected"
   "src/client/balance/outlier-detection.lisp"
   "(* (endpoint-volume endpoint) (algorithm-factor algorithm))"
   "(* 100 (endpoint-volume endpoint) (algorithm-factor algorithm))")
  ("`maxEjectionPercent`"
   "balance" "ejection-has-limits"
   "src/client/balance/outlier-detection.lisp" "(< (* 100 (detection-ejected balancer))" "(<= 0")
  ("a child policy, over some of many servers (A68)"
   "balance" "subsets"
   "src/client/balance/random-subsetting.lisp" "(subseq (sort ranked #'< :key #'car) 0 size)"
   "(sort ranked #'< :key #'car)")
  ("the first of several children that works"
   "balance" "priorities-fail-over-and-back"
   "src/client/balance/priority.lisp" "(cond ((member (branch-state branch) '(:ready :idle))"
   "(cond ((member (branch-state branch) '(:idle))")
  ("the same server for the same key, while that server exists (A42, A76)"
   "balance" "few-keys-move"
   "src/client/balance/ring-hash.lisp"
   "(setf (aref hashes at) (entry-hash octets (1+ (length key)) number)"
   "(setf (aref hashes at) (entry-hash octets (1+ (length key)) at)")
  ("the old policy continues to serve until the new policy is ready"
   "client" "the-old-policy-serves-until-the-new-one-is-ready"
   "src/client/picking/switch.lisp"
   "(unless (and (eq :connecting state) (eq :ready (switch-state parent)))" "(progn")
  ("avoids servers that do not serve it"
   "balance" "health-vetoes"
   "src/client/balance/health-watch.lisp" "(if (eq :serving status)" "(if status")
  ("a server without a health service counts as healthy (A17)"
   "balance" "health-vetoes"
   "src/client/balance/health-watch.lisp"
   ":server (subchannel-key subchannel))
     (lift-veto subchannel :health))"
   ":server (subchannel-key subchannel)))")
  ("`pick_first`, and a channel with `:health-checking nil`, make no health checks"
   "balance" "channels-may-do-without-health-checks"
   "src/client/channel-structure.lisp" "(options-health-checking (core-options core))" "t")
  ("after a random part of a growing back-off"
   "attempt" "back-off-grows-up-to-its-maximum"
   "src/client/config/retry-policy.lisp" "(min wait maximum)" "wait")
  ("at the time that the server gives (`grpc-retry-pushback-ms`)"
   "attempt" "pushbacks-are-32-bit-numbers"
   "src/rpc/attempt/retry.lisp" "(<= 0 number #x7FFFFFFF)" "(<= 0 number #x8FFFFFFF)")
  ("A call has at most `maxAttempts` attempts, and at most the channel's `:max-attempts` (5)"
   "attempt" "policies-say-how-often"
   "src/rpc/attempt/retry.lisp"
   "(options-max-attempts options)" "most-positive-fixnum")
  ("While half of the tokens or fewer are left, no call is retried"
   "attempt" "throttles-keep-within-their-limits"
   "src/rpc/attempt/retry.lisp" "(<= (* 2 tokens)" "(< (* 2 tokens)")
  ("A failed attempt takes one token, and a successful call adds `tokenRatio` tokens"
   "attempt" "failures-take-tokens"
   "src/rpc/attempt/retry.lisp" "(change-tokens throttle -1000)"
   "(change-tokens throttle -500)")
  ("The first answer, response headers or a message, commits a call"
   "attempt" "the-answered-attempt-has-the-call"
   "src/rpc/attempt/retry.lisp" 
   "(remove attempt (shiftf (retries-running retries) (and attempt (list attempt))))"
   "(shiftf (retries-running retries) (and attempt (list attempt)))")
  ("`:retry nil` leaves only transparent retries"
   "transports" "retries-can-be-switched-off-over-tcp"
   "src/rpc/attempt/retry.lisp"
   "(options-retry options)
"
   "t
")
  ("if they are alike: the same options, `:credentials` (the same object), authority and"
   "client" "channels-that-differ-have-their-own"
   "src/client/connection-set.lisp" "(mapcar #'rest (option-values options))" "nil")
  ("After `:idle-seconds` without calls (half an hour; 0 means never) the whole channel"
   "client" "a-channel-without-calls-goes-idle"
   "src/client/core.lisp" "(t (go-idle core))" "(t nil)"))

(define-promises "doc/http.md"
  ("200 while the service serves, 503 while it drains or does not serve"
   "services" "health-over-plain-http"
   "src/services/health.lisp" "(cond ((service-stopping service) **draining**)"
   "(cond (nil **draining**)")
  ("404 for an unknown `?service=NAME`"
   "services" "health-over-plain-http"
   "src/services/health.lisp" "((nil) **no-such-service**)" "((nil) **health-unknown**)")
  ("both `content-length` and `transfer-encoding`"
   "http1" "chunks-and-lengths-are-not-mixed"
   "src/http/http1/body-framing.lisp" "(when (fields-named \"content-length\" fields)" "(when nil")
  ("`transfer-encoding` in HTTP/1.0"
   "http1" "chunks-and-lengths-are-not-mixed"
   "src/http/http1/body-framing.lisp" "(when (zerop minor) (bad-message 400 \"HTTP/1.0"
   "(when nil (bad-message 400 \"HTTP/1.0")
  ("a missing or second `host`"
   "http1" "hosts-are-said-once"
   "src/http/http1/body-framing.lisp" "(when (rest found) (bad-message" "(when nil (bad-message")
  ("chunks whose length is not a number of at most ten hexadecimal digits"
   "http1" "bad-chunks-are-refused"
   "src/http/http1/chunk.lisp" "(when (<= +most-length-digits+ (- at start))"
   "(when (<= (1+ +most-length-digits+) (- at start))"))

(define-promises "doc/web.md"
  ("A deadline is `connect-timeout-ms` or `grpc-timeout`"
   "web" "grpc-in-json"
   "src/web/operation.lisp" "unreadable late (metadata-rejection metadata)"
   "unreadable (metadata-rejection metadata)")
  ("An unknown or invalid parameter is answered with 400, which names it"
   "rest" "wrong-parameters-are-named"
   "src/web/rest/query.lisp"
   "(stuck
"
   "(nil
")
  ("the path wins over query and body"
   "rest" "parameters-become-fields"
   "src/web/rest/query.lisp" "(set-text message (binding-fields binding) (list text) t)"
   "(set-text message (binding-fields binding) (list text))")
  ("one after another, 10,000 messages at most"
   "rest" "streams-have-a-bound"
   "src/web/rest/body.lisp" "(when (<= +most-messages+ before)" "(when (< +most-messages+ before)")
  ("`:origins` lists the allowed origins, compared literally"
   "web" "pages-of-listed-origins-may-call"
   "src/web/cors.lisp" "(find origin origins :test #'string=)"
   "(find origin origins :test #'string-equal)")
  ("without a list no page is allowed"
   "web" "without-origins-no-page-may-call"
   "src/web/cors.lisp" "(let ((origin (and origins (header-value fields \"origin\"))))"
   "(let ((origin (header-value fields \"origin\")) (origins (or origins :any)))")
  ("browsers then send no cookies"
   "web" "any-origin-has-no-credentials"
   "src/web/cors.lisp" ". \"*\")" ". \"*\") (\"access-control-allow-credentials\" . \"true\")"))

(define-promises "doc/call-credentials.md"
  ("more than 90 s"
   "token" "lives-of-tokens"
   "src/client/token/token-credentials.lisp"
   "(min (+ +least-life-seconds+ +refresh-seconds+) (/ seconds 4))"
   "(+ +least-life-seconds+ +refresh-seconds+)")
  ("one request for the token runs at a time"
   "token" "one-fetch-at-a-time"
   "src/client/token/token-credentials.lisp" "(or fresh failure (token-fetching credentials))"
   "(or fresh failure)")
  ("The wait doubles with each further failure, up to 120 s"
   "token" "failures-are-kept-for-a-while"
   "src/client/token/token-credentials.lisp"
   "(and (< (loop:world-now) (token-retry-ns credentials))" "(and nil")
  ("another status than 200; an answer or a file without a token, or with one that has expired"
   "token" "what-is-no-token"
   "src/client/token/token-credentials.lisp" "((not (typep seconds '(real (0))))"
   "((not (realp seconds))")
  ("calls wait for it as long as their deadlines allow"
   "transports" "deadlines-end-waits-for-credentials-over-in-process"
   "src/rpc/credentials/call-credentials.lisp"
   ":deadline-exceeded :ended-by :local" ":unavailable :ended-by :local")
  ("the tokens of several credentials, all sent"
   "client" "credentials-of-channel-and-call"
   "src/rpc/credentials/call-credentials.lisp" "(apply #'append answers)" "(first answers)"))

(define-promises "doc/interceptors.md"
  ("not take the arguments described below is refused"
   "base" "interceptors-take-their-arguments"
   "src/base/arity.lisp" "(check-arity function arguments \"An interceptor\")"
   "(list function arguments)")
  ("Servers and channels take a list of interceptors; the first is the outermost"
   "calling" "the-first-interceptor-is-the-outermost"
   "src/rpc/serving/handler-answer.lisp" "(funcall (first interceptors) call request"
   "(funcall (first (last interceptors)) call request")
  ("first a service's full name or a method's symbol, then the function"
   "rpc" "interceptors-are-for-methods"
   "src/rpc/interceptor.lisp" "(string= where (rpc-method-service-name method))" "t")
  ("Values stay at their end of the call"
   "rpc" "values-are-kept-by-symbol"
   "src/rpc/call-value.lisp" "(cond (entry (return (setf (cdr entry) value)))"
   "(cond (entry (return value))"))

(define-promises "doc/topics.md"
  ("all subscribers get the messages in the same order"
   "topic" "slow-subscribers-lose-messages"
   "src/rpc/topic/topic.lisp" "(enqueue-first message (subscription-queue subscription))"
   "(enqueue message (subscription-queue subscription))")
  ("ends with `:resource-exhausted`"
   "topic" "a-slow-subscriber-is-ended"
   "src/rpc/topic/topic.lisp" "(end-instead subscription :resource-exhausted"
   "(end-instead subscription :unavailable")
  ("loses the oldest message that waits"
   "topic" "slow-subscribers-lose-messages"
   "src/rpc/topic/topic.lisp"
   "                    (dequeue queue)
                    (decf (subscription-count subscription))
                    (add)
"
   "                    (progn)
")
  ("A call leaves its topics, of which it may have several, when it ends"
   "topic" "subscribers-come-and-go"
   "src/rpc/topic/topic.lisp" "while topic do (unsubscribe topic call)" "while topic")
  ("If that message is no longer kept, the stream ends with `:out-of-range`"
   "topic" "positions"
   "src/rpc/topic/topic.lisp" "((<= before from (topic-position topic))"
   "((<= 0 from (topic-position topic))")
  ("`close-topic` ends all calls of the topic"
   "topic" "the-end-of-a-topic"
   "src/rpc/topic/topic.lisp"
   "((topic-closing topic)
               (setf (subscription-closing subscription) (topic-closing topic)))"
   "((topic-closing topic))"))

(define-promises "doc/in-process.md"
  ("Messages are copied, and therefore neither side sees later changes by the other side"
   "transports" "messages-are-copies-over-in-process"
   "src/inproc/message-copy.lisp" "(inproc-core-copy (call-inproc-core call) message)" "message")
  ("the limits of [limits.md]"
   "transports" "message-limits-over-in-process"
   "src/inproc/message-copy.lisp" "(min (sending-limit call) (receiving-limit call))"
   "(sending-limit call)"))

(define-promises "doc/protobuf.md"
  ("A missing `required` field signals `required-field-missing`, with its path"
   "protobuf" "required-fields-must-be-there"
   "src/protobuf/codec/requirement.lisp"
   "(slot-required-p slot) (not (slot-present-p message slot))" "(slot-required-p slot) nil")
  ("Imports are found without flags"
   "protobuf" "a-package-implies-a-root"
   "src/protobuf/source/import.lisp"
   "(list (directory-of truename) (implied-root truename package))"
   "(list (directory-of truename))")
  ("has limits on nesting and memory"
   "protobuf" "octets-for-little-code-are-refused-as-others-are"
   "src/protobuf/codec/generic-coder.lisp"
   "(when (minusp (decf (reading-depth reading))) (fail-recursion at))"
   "(when (minusp (+ 1000 (decf (reading-depth reading)))) (fail-recursion at))")
  ("both readers take `:ignore-unknown`"
   "protobuf" "json-refused"
   "src/protobuf/formats/json-reader.lisp" "(once (zerop (bit seen index)))" "(once t)")
  ("Maps have accessors of their own, and keep the order of insertion"
   "protobuf" "json-refused"
   "src/protobuf/formats/json-reader.lisp" "(when (nth-value 1 (map-value map key))" "(when nil"))

(define-promises "doc/tracing.md"
  ("one in a hundred, chosen by the trace id"
   "trace" "a-ratio-is-kept"
   "src/observe/trace/sampler.lisp" "(< (ash (span-context-low span-context) -1) bound)"
   "(< (ash (span-context-low span-context) -1) (* 2 bound))")
  ("the parent's decision, or `ROOT` without a parent"
   "trace" "the-parent-decides"
   "src/observe/trace/sampler.lisp" "(if (context-sampled parent) remote not-remote)" "remote")
  ("`tracestate` that is invalid or has more than 32 members is dropped"
   "trace" "limits-of-tracestates"
   "src/observe/trace/trace-state.lisp"
   "(and (< count +most-members+) (find-member text start end))" "(find-member text start end)")
  ("If two members have the same key, the first is kept"
   "trace" "the-first-of-two-members-with-a-key-stays"
   "src/observe/trace/trace-state.lisp"
   "(unless (loop for other in members thereis (same-key-p text place other))" "(progn")
  ("A `tracestate` of more than 512 characters loses members"
   "trace" "long-tracestates-lose-members"
   "src/observe/trace/trace-state.lisp" "(loop while (> (state-length members) +most-state-octets+)"
   "(loop while (> (state-length members) 1024)")
  ("On receipt the first valid context of the first two forms counts"
   "trace" "a-server-finds-its-parent-in-the-metadata"
   "src/observe/trace/trace-header.lisp" "(when context (return context))" "(return context)"))

(define-promises "doc/observability.md"
  ("Of the arguments in a backtrace the log shows only the classes"
   "base" "backtraces-show-no-values"
   "src/base/log/log.lisp" "(typep argument '(or boolean keyword))" "argument")
  ("at most ten a second of a peer on each loop"
   "logs" "failures-of-a-peer-are-logged-ten-times-a-second"
   "src/observe/logs/access-log.lisp" "(gethash host counts 0))) +failures-per-second+)"
   "(gethash host counts 0))) 1000000)")
  ("Failed calls are logged whatever the ratio"
   "logs" "failures-are-logged-whatever-the-ratio-is"
   "src/observe/logs/access-log.lisp"
   "(not (eq :ok (call-status call)))
"
   "nil
")
  ("The most exact match counts"
   "logs" "filters-mean-what-the-document-says"
   "src/observe/logs/filter.lisp"
   "(or (gethash (subseq path 1) table)
                         (gethash"
   "(or nil
                         (gethash")
  ("on a client `authorization` is not logged either"
   "logs" "entries-have-what-they-should"
   "src/observe/logs/binary.lisp" "(remove \"authorization\"" "(remove \"authorisation\""))

(define-promises "doc/monitoring.md"
  ("further lists are counted together, with the attribute `otel.metric.overflow`"
   "metrics" "too-many-attributes-overflow"
   "src/observe/metrics/user-instrument.lisp" "(< (custom-row-count custom) (custom-limit custom))"
   "t")
  ("or at the time that the collector gives (`RetryInfo`)"
   "otlp" "delays-grow-or-are-told"
   "src/observe/otlp/failure.lisp" "(if (and told (plusp told))" "(if nil")
  ("its export failed with a permanent status"
   "otlp" "statuses-that-may-pass"
   "src/observe/otlp/failure.lisp" "(and (member status *retryable*) t)" "t")
  ("refused because it is too long is sent again in halves"
   "otlp" "a-batch-that-is-too-long-is-divided"
   "src/observe/otlp/export-pipeline.lisp" "(< 1 count)" "(< 1000 count)"))

(define-promises "doc/limits.md"
  ("Further servers are ignored, with a warning."
   "client" "so-many-subchannels-are-used"
   "src/client/subchannel.lisp" "((not (shiftf (core-crowded core) t))" "(nil")
  ("that memory is charged to the account of the peer's connection"
   "base" "accounts-tell-of-excess"
   "src/base/memory/account.lisp" "(< (account-most whole) (account-sum whole))"
   "(< (* 2 (account-most whole)) (account-sum whole))")
  ("connections with new input are
read between two of them"
   "loop" "newcomers-come-in-the-middle-of-a-long-turn"
   "src/loop/threads/turn.lisp" "(<= admission now)" "(null now)"))

(define-promises "doc/etcd/etcd.md"
  ("`leadership-held-p`, `leadership-guard`, `leadership-revision` and `:on-loss` are as for locks"
   "memory" "what-etcd-is-tested-with"
   "etcd/client/election.lisp"
   "(lose-waiter leadership condition)
"
   "
")
  ("A lock has one owner at a time"
   "memory" "what-etcd-is-tested-with"
   "etcd/client/waiter.lisp"
   "(if before
             (handler-case (await"
   "(if nil
             (handler-case (await")
  ("The client repeats reads, also transactions that only read"
   "etcd" "writes-are-done-once"
   "etcd/client/transaction.lisp" "((:get :get-all :count) t)" "((:get :get-all :count :put) t)")
  ("The client repeats a write only if a member has refused it without doing it"
   "etcd" "writes-are-done-once"
   "etcd/client/etcd-call.lisp" "(unless (and (or twice (refused-p error))" "(unless (and t")
  ("In place of KEY `(:prefix PREFIX)` means all entries of a range"
   "etcd" "ranges-of-keys"
   "etcd/client/key-range.lisp" "(position 255 prefix :test #'/= :from-end t)"
   "(1- (length prefix))"))

(define-promises "doc/etcd/discovery.md"
  ("An empty list removes no servers"
   "discovery" "empty-lists-take-nothing-away"
   "etcd/discovery/service-watcher.lisp"
   "(tell service-watcher :failure \"no server is registered\")"
   "(tell service-watcher :addresses '() config)")
  ("| all servers drain | the draining servers are used |"
   "discovery" "endpoint-tables"
   "etcd/discovery/endpoint-table.lisp" "(or (remove :draining all :key #'endpoint-state) all)"
   "(remove :draining all :key #'endpoint-state)")
  ("| two keys have one address | the later one counts |"
   "discovery" "endpoint-tables"
   "etcd/discovery/endpoint-table.lisp"
   "(< (table-entry-changed known) (table-entry-changed table-entry))"
   "(> (table-entry-changed known) (table-entry-changed table-entry))")
  ("| the key of a server | 4,096 octets | the entry is ignored |"
   "discovery" "keys-that-are-no-text"
   "etcd/discovery/endpoint-table.lisp" "(if (< +longest-key+ (length" "(if (< 1000000 (length")
  ("| zone, hash key | 512 characters each | is ignored |"
   "discovery" "what-says-nothing"
   "etcd/discovery/endpoint.lisp" "(<= 1 (length value) +longest-word+)" "(<= 1 (length value))")
  ("clgrpc includes the slash in the prefix"
   "discovery" "names-are-whole"
   "etcd/discovery/service-key.lisp" "(format nil \"~A/\" name)" "(format nil \"~A\" name)"))

(define-promises "doc/etcd/memory.md"
  ("ends at its time, with 1,000 of its keys at each revision"
   "memory" "leases-end-in-time"
   "etcd/memory/lease-table.lisp" "when (<= (lease-end-ns lease) now-ns) collect lease"
   "when (< (lease-end-ns lease) now-ns) collect lease")
  ("the last `:max-revisions` (10,000); older ones are compacted automatically"
   "memory" "stores-have-limits"
   "etcd/memory/lease-table.lisp"
   "(when (> (length (store-records store)) (+ most (ceiling most 4)))" "(when nil"))

(define-promises "doc/cluster/cluster.md"
  ("Generations of a name only grow, even after deaths"
   "cluster" "generations-only-grow"
   "cluster/membership/membership-decision.lisp" "(max revision known" "(max revision")
  ("With `:if-taken :refuse` the later node is refused instead"
   "cluster" "joins-are-decided"
   "cluster/membership/membership-decision.lisp" "((eq :take-over if-taken) :enter)"
   "(if-taken :enter)")
  ("A repeated `Join` with the same `instance` makes one member"
   "cluster" "joins-are-decided"
   "cluster/membership/membership-decision.lisp" "(same (if (plusp known) :enter :same))"
   "(same :enter)")
  ("`Leave` ends a membership, but not one of another generation"
   "cluster" "lives-are-told-apart"
   "cluster/membership/membership-decision.lisp"
   "((= generation (member-generation existing)) :alive)"
   "((<= generation (member-generation existing)) :alive)")
  ("`*` matches one label or one segment"
   "authority" "patterns-of-identities"
   "cluster/authority/pattern.lisp" "(or (position separator text :start start) (length text))"
   "(length text)")
  ("Without TLS and without permissions, every peer that can connect has all roles but `join`"
   "cluster" "nobody-joins-or-reads-without-a-role"
   "cluster/authority/role.lisp"
   "(not (eq :join role))
"
   "t
"))

(define-promises "doc/cluster/workflows.md"
  ("Keys and values that another program has put among those of a namespace"
   "workflow" "entries-of-other-programs-stop-no-node"
   "cluster/workflow/stored/key.lisp" "(clgrpc-error () nil)" "(program-error () nil)")
  ("A loss does not count as a failure"
   "workflow" "losses-are-not-failures"
   "cluster/workflow/decisions/decision.lisp" "(decf (pb:step-state-attempts step))" "nil")
  ("Workers without tasks cost etcd nothing, however many they are"
   "workflow" "sessions-share-the-lease-of-their-node"
   "cluster/workflow/session-lease.lisp" "(certain-p (session-record-session-lease record))" "nil")
  ("the node gives the session a lease of its own"
   "workflow" "sessions-share-the-lease-of-their-node"
   "cluster/workflow/session-lease.lisp" "(ring-list (session-lease-silent session-lease))" "'()")
  ("After twenty losses in a row the task fails"
   "workflow" "losses-are-not-failures"
   "cluster/workflow/decisions/decision.lisp"
   "(if (< (incf (pb:step-state-losses step)) +most-losses+)"
   "(if (incf (pb:step-state-losses step))")
  ("Every claim has a fencing number (`task-fence`), greater than all"
   "workflow" "fences-only-grow"
   "cluster/workflow/decisions/decision.lisp"
   "(max (1+ (pb:workflow-state-fence state))
"
   "(max (pb:workflow-state-fence state)
")
  ("is recorded once"
   "workflow" "reports-count-once"
   "cluster/workflow/decisions/decision.lisp"
   "(unless (equalp digest (pb:recorded-digest recorded))" "(unless t")
  ("A cron expression has five fields, as in cron(5)"
   "workflow" "cron-expressions"
   "cluster/workflow/schedules/cron.lisp" "(or day weekday)" "(and day weekday)")
  ("`store-full`, and `store-forbids` if the node's user of etcd lacks a right"
   "workflow" "what-does-not-pass-is-not-told-as-passing"
   "cluster/workflow/workflow-client.lisp" "(typep condition 'store-unavailable)"
   "(typep condition '(or store-unavailable store-full))")
  ("| `:max-signals` | 100 | signals that wait in a workflow for a step |"
   "workflow" "signals-wait-for-their-steps"
   "cluster/workflow/decisions/decision.lisp"
   "(when (> count most)
                 (refuse-size :backlog-full"
   "(when (> count (1+ most))
                 (refuse-size :backlog-full"))

(define-promises "doc/cluster/raft.md"
  ("its member of this group has another name"
   "raft" "what-is-for-another-is-refused"
   "cluster/raft/raft-service.lisp" "((not (same-name-p receiver (local-member-name member)))"
   "((null receiver)")
  ("With TLS the sender must be the member that the peer's certificate names"
   "raft" "a-stream-proves-each-sender"
   "cluster/raft/raft-service.lisp"
   "(same-name-p (v1:append-entries-request-sender request) sender)" "sender")
  ("`add-group` and `remove-group` add and remove members while the service runs"
   "raft" "groups-of-one-service"
   "cluster/raft/raft-service.lisp" "(not (local-member-removed recent))" "recent"))

(define-promises "doc/simulation.md"
  ("The same seed gives the same run, octet for octet"
   "sim" "the-same-seed-gives-the-same-trace"
   "sim/chance.lisp" "(%make-chance (mix (ldb" "(%make-chance (logxor (random 2) (ldb")
  ("let nothing through between them for a while; packets wait"
   "sim" "a-partition-holds-everything-up"
   "sim/network.lisp" "((parted-p simulation host (socket-far-host socket))" "(nil")
  ("limits the octets that a host receives on each connection"
   "sim" "a-slow-host-gets-its-octets-late"
   "sim/network.lisp" "(if rate (floor (* octets +ns-per-second+) rate) 0)" "0"))

(define-promises "doc/event-loop.md"
  ("interval"
   "async" "intervals-do-not-drift"
   "async/event.lisp" "(* period (1+ (floor late period)))" "period"))

(define-promises "doc/channelz.md"
  ("the last 32 events of a channel, a subchannel or a server are"
   "channelz" "traces-are-bounded"
   "src/base/log/channel-trace.lisp" "(subseq events 0 (min +most-channel-events+ (length events)))"
   "events"))

(define-promises "doc/tools/console.md"
  ("Only this machine has access, unless `:remote` is true: other machines get 403"
   "console" "other-machines-are-refused"
   "tools/console/access.lisp" "(or (console-remote-p console) (loopback-address-p peer))" "t")
  ("A request for another host than `localhost` or an address of this machine gets 403 as well"
   "console" "other-names-are-refused"
   "tools/console/access.lisp"
   "(loopback-host-p (host-part (or (exchange:http-request-header request \"host\") \"\")))" "t")
  ("Access needs the token"
   "console" "the-token-is-wanted"
   "tools/console/access.lisp"
   "((right-p (exchange:http-request-parameter request \"token\")) :address)" "(t :address)"))

(define-promises nil
  ("octets of a handshake that the kernel does not take at once leave when there is room"
   "loop" "a-handshake-goes-on-when-there-is-room"
   "src/loop/io/tls-channel.lisp" "(if (eq :handshaking (tls-state tls)) (send-tail tls) 0)" "0")
  ("octets of a ClientHello that the kernel does not take at once leave when there is room"
   "loop" "a-handshake-begins-when-there-is-room"
   "src/loop/io/tls-channel.lisp"
   "(if (zerop sent) +wants-read+ (pass-result byte-channel tls sent))" "+wants-read+")
  ("within the image the function of AFTER waits for the callback that runs"
   "inproc" "timers-wait-for-the-callback-that-runs"
   "src/inproc/inproc-callback.lisp" "(lambda () (schedule call))" "(lambda () (run-due call))")
  ("a server stream of a service called directly starts no timer unless it has a deadline"
   "inproc" "streams-of-services-need-no-timer"
   "src/inproc/waiting.lisp" "(watched (watched-p call-pair))" "(watched t)")
  ("the function of an outer interceptor sees an incoming message first, and an outgoing one last"
   "rpc" "filters-are-in-the-order-of-interceptors"
   "src/rpc/messaging.lisp" "(combined outgoing (outbound-filter outbound))"
   "(combined (outbound-filter outbound) outgoing)")
  ("the end of a call gives back the window that its unread messages withheld"
   "wire" "a-call-that-ends-gives-the-connections-window-back"
   "src/wire/link-memory.lisp"
   "(discharge call (uncharge inbound (wire-inbound-queued-octets inbound)))"
   "(uncharge inbound (wire-inbound-queued-octets inbound))")
  ("a watch of the store in memory that is cancelled frees its place"
   "memory" "a-cancelled-watch-is-gone"
   "etcd/memory/engine.lisp" "(decf (listener-watch-count (watch-listener watch)))" "nil")
  ("a socket that is closed while it connects is not left connected"
   "async" "a-socket-closed-while-it-connects"
   "async/tcp-server.lisp" "(when byte-channel (loop:close-byte-channel byte-channel))" "nil")
  ("a member that gets no answer of the store takes no entry of another process for its own"
   "cluster" "an-entry-that-was-perhaps-written-is-looked-for"
   "cluster/membership/membership.lisp"
   "(and found (= (etcd:entry-lease found) (etcd:lease-id lease)))" "found")
  ("a node that hears nothing of its entry looks for it"
   "cluster" "nodes-look-for-their-entries"
   "cluster/membership/membership-node.lisp" "(:member (look-for-entry node)
" "(:member
")
  ("a session is taken only by a lease that was renewed lately"
   "workflow" "a-node-that-is-not-certain-asks"
   "cluster/workflow/session-lease.lisp"
   "(and present (or (certain-p present) (renew-session-lease node present)))" "present")
  ("the sums of what has ended follow what is deleted"
   "workflow" "ended-workflows-are-read-once"
   "cluster/workflow/stored/retention.lisp"
   "(cond (previous (count-ended retention root previous -1))" "(cond (previous)")
  ("an attempt fails by an error that cannot be printed, too"
   "workflow" "a-step-s-error-that-cannot-be-printed"
   "cluster/workflow/worker.lisp" "(bounded-text
                                                          condition :limit +longest-text+)"
   "condition")
  ("a report by a handler's own call gets another task"
   "workflow" "handlers-call-the-service"
   "cluster/workflow/workflow-method.lisp" "(not (and call (rpc:call-status call)))"
   "(null (rpc:call-status call))")
  ("what one thread posts is taken in its order"
   "loop" "inbox-keeps-order"
   "src/loop/threads/inbox.lisp" "(nreverse head)" "head")
  ("a descriptor does not live on in programs that are run"
   "os" "sockets-do-not-live-on-in-programs"
   "src/os/socket.lisp" "(int (logior +sock-stream+ +sock-nonblock+ +sock-cloexec+))"
   "(int (logior +sock-stream+ +sock-nonblock+))")
  ("a connection whose peer does not take its output is not read"
   "loop" "slow-reader"
   "src/loop/io/connection-io.lisp"
   "(> (connection-unsent connection) (connection-max-unsent connection))"
   "(> 0 (connection-max-unsent connection))")
  ("a program does not end while a peer is still to take its output"
   "async" "a-program-waits-for-the-peer-of-its-last-socket"
   "async/handle.lisp" "(not (loop:connections-closing-p loop))" "t")
  ("a block that has a secret is not remembered"
   "hpack" "blocks-that-are-never-kept"
   "src/http/hpack/block-decoder.lisp"
   "(when (field-sensitive-p field) (return-from repeat-of nil))" "(progn)")
  ("a table has no more octets than its limit (RFC 7541 section 4.4)"
   "hpack" "table-eviction"
   "src/http/hpack/table.lisp" "(evict-entries table (- limit size))" "nil")
  ("SETTINGS_INITIAL_WINDOW_SIZE changes the windows of open streams"
   "http2" "changed-initial-window"
   "src/http/http2/flow.lisp"
   "(let ((difference (- window (connection-peer-stream-window connection))))"
   "(let ((difference 0))")
  ("a peer that resets stream after stream is told ENHANCE_YOUR_CALM"
   "http2" "rapid-resets-end-the-connection"
   "src/http/http2/rate-limit.lisp" "(not (reset-earned-p connection))" "nil")
  ("a client that asks too often is told too_many_pings (gRFC A8)"
   "http2" "pings-have-their-interval"
   "src/http/http2/rate-limit.lisp" "(incf (counters-ping-strikes counters))" "0")
  ("answers that the peer does not read are bounded"
   "http2" "answers-are-counted-until-sent"
   "src/http/http2/rate-limit.lisp" "(incf (counters-control-frames counters))" "0")
  ("a peer that reads a long stream may send PINGs without end"
   "http2" "answers-that-leave-are-counted-no-longer"
   "src/http/http2/rate-limit.lisp" "(when (<= (counters-control-mark counters) sent)" "(when nil")
  ("a stream that we reset is known while its late frames may come"
   "http2" "resets-are-known-in-any-order"
   "src/http/http2/reset.lisp" "(if (< (aref resets middle) id)" "(if (< id (aref resets middle))")
  ("a request that ends within a message is not handled"
   "server" "request-messages"
   "src/server/delivery.lisp" "(cond ((wire:wire-call-partial call)" "(cond ((not t)")
  ("memory for a message grows with its octets, not with the length that it claims"
   "wire" "claims-cost-nothing"
   "src/wire/framing.lisp" "(if (<= length (* +foresight+ (+ fill more)))" "(if (<= 0 length)")
  ("a silent peer is asked, and given up"
   "wire" "peers-that-are-silent-are-asked"
   "src/wire/link-keepalive.lisp" "(format nil \"keepalive: no sign of the peer for ~,3F s\""
   "(error \"keepalive: no sign of the peer for ~,3F s\"")
  ("a peer that does not take its output is given up"
   "wire" "output-is-taken-in-time"
   "src/wire/link-keepalive.lisp"
   "(cond ((not (loop:connection-blocked-p (link-socket link))) (+ now timeout))"
   "(cond (t (+ now timeout))")
  ("a request that ends within a message is not handled"
   "server" "request-messages"
   "src/server/delivery.lisp"
   "((wire:wire-call-partial call)
"
   "((null call)
")
  ("a member votes once in a term"
   "raft-example" "what-was-answered-is-on-the-disk"
   "examples/raft/election.lisp" "(member (node-vote node) (list nil candidate) :test #'equal)" "t")
  ("a candidate with an older log is not elected"
   "raft-example" "a-candidate-with-an-older-log-is-not-elected"
   "examples/raft/election.lisp" "(or (> term own)" "(or t (> term own)")
  ("a vote is on the disk before it is given"
   "raft-example" "what-was-answered-is-on-the-disk"
   "examples/raft/election.lisp"
   "(sync-journal node)
                 (vote-response node granted)"
   "(vote-response node granted)")
  ("a term outlives a crash"
   "raft-example" "what-was-answered-is-on-the-disk"
   "examples/raft/election.lisp" "(set-term node term nil)"
   "(setf (node-term node) term (node-vote node) nil)")
  ("a candidate's vote for itself is on the disk before it asks"
   "raft-example" "a-candidate-votes-for-itself-before-it-asks"
   "examples/raft/driver.lisp"
   "(sync-journal node))))

(defun seconds-to-wait"
   "nil)))

(defun seconds-to-wait")
  ("entries are on the disk before they are acknowledged"
   "raft-example" "what-was-answered-is-on-the-disk"
   "examples/raft/follower.lisp"
   "(take-entry node entry)) entries)
               (sync-journal node)"
   "(take-entry node entry)) entries)")
  ("a leader forces out what it counts as its own"
   "raft-example" "a-leader-forces-out-what-it-counts-as-its-own"
   "examples/raft/node.lisp" "(when (shiftf (node-dirty node) nil)"
   "(when (and (shiftf (node-dirty node) nil) (not (eq :leader (node-role node))))")
  ("entries of an old term are not committed by counting"
   "raft-example" "a-leader-counts-only-entries-of-its-own-term"
   "examples/raft/replication.lisp" "(when (eql (node-term node) (term-at (node-log node) index))"
   "(when (plusp index)")
  ("a majority commits"
   "raft-example.seeds" "seeds-of-groups"
   "examples/raft/replication.lisp" "(nth (floor (length numbers) 2) numbers)"
   "(nth (1- (floor (length numbers) 2)) numbers)")
  ("the entry before is compared"
   "raft-example" "a-follower-compares-the-entry-before"
   "examples/raft/follower.lisp"
   "(eql (v1:append-entries-request-prev-log-term request)
             (term-at"
   "(progn
             (term-at")
  ("entries that are there are not truncated"
   "raft-example" "a-follower-truncates-what-differs-only"
   "examples/raft/follower.lisp"
   "(or (<= index (log-base-index log)) (eql term (v1:entry-term entry)))"
   "(<= index (log-base-index log))")
  ("a follower commits what it knows to agree"
   "raft-example" "a-follower-commits-what-it-knows-to-agree"
   "examples/raft/follower.lisp" "(min last (v1:" "(min (last-index (node-log node)) (v1:")
  ("a read is confirmed by a majority"
   "raft-example" "a-read-waits-for-a-majority"
   "examples/raft/replication.lisp" "(<= (pending-read-round read) round)" "(<= 0 round)")
  ("a command that comes again is not done again"
   "raft-example" "a-command-that-comes-again-is-not-done-again"
   "examples/raft/store.lisp" "(session-sequence session)) (session-result session))"
   "(session-sequence session)) (change-pair store command))")
  ("a snapshot has the sessions"
   "raft-example" "a-command-that-comes-again-is-not-done-again"
   "examples/raft/store.lisp" "across (pb:contents-sessions contents)" "across #()")
  ("a snapshot keeps no entries that disagree with it"
   "raft-example" "a-snapshot-keeps-what-agrees-with-it"
   "examples/raft/log.lisp" "(rest (and (eql term (term-at log index))"
   "(rest (and (<= index (last-index log))")
  ("what a crash has left of a record is cut off"
   "raft-example" "half-a-record-is-cut-off"
   "examples/raft/journal.lisp" "(when (< at (length octets))" "(when nil"))

(define-promises "doc/observers.md"
  ("which are called one after the other"
   "rpc" "observers-are-joined-in-their-order"
   "src/rpc/observer.lisp" "(mapcar reader observers)" "(mapcar reader (reverse observers))"))

(define-promises "doc/transports.md"
  ("A function with other arguments than its operation is an error at load time"
   "rpc" "operations-take-what-the-contract-says"
   "src/rpc/transport.lisp" "(unless (takes-p function (length (contract-row-lambda-list row)))"
   "(unless function"))

(define-promises "doc/guides/security.md"
  ("a client verifies the certificate and the name"
   "os" "tls-verification"
   "src/os/tls-session.lisp"
   "(:require (logior +ssl-verify-peer+
                                                    +ssl-verify-fail-if-no-peer-cert+))"
   "(:require 0)")
  ("the log has no metadata"
   "hpack" "secrets-are-not-printed"
   "src/http/hpack/header-field.lisp" "(if (secret-field-p field)" "(if (field-sensitive-p field)"))

(define-promises "doc/guides/deployment.md"
  ("with fewer descriptors the server lowers its number of connections"
   "abuse" "descriptors-are-derived"
   "src/server/limits/admission.lisp" "(max 1 (min wanted (- limit open spare)))" "wanted"))

(define-promises "doc/guides/tuning.md"
  ("failures are logged in any case"
   "logs" "failures-are-logged-whatever-the-ratio-is"
   "src/observe/logs/access-log.lisp" ":failures (and failures t)" ":failures nil"))

(define-promises "doc/guides/cookbook.md"
  ("Without a retry policy, calls are repeated only if no server has processed them"
   "attempt" "failures-that-count"
   "src/client/config/retry-policy.lisp"
   "(if policy (attempt-policy-codes policy) 0)" "(if policy (attempt-policy-codes policy) 65535)"))

(define-promises "doc/guides/first-service.md"
  ("The command then exits with a code other than 0"
   "runner" "testing-a-system-signals-failures"
   "tests/support/programs/suite.lisp" "(when failed (error 'tests-failed :suites failed))" "nil"))

(define-promises "doc/cluster/production.md"
  ("gRPC health of `clgrpc.cluster.v1.Cluster`: `:serving` while the node is a member"
   "cluster" "the-later-of-a-name-wins"
   "cluster/membership/membership-node.lisp" "(if (eq :member state) :serving :not-serving)"
   ":serving"))

(define-promises "doc/tools/load.md"
  ("each call has a time at which it is due, independent of earlier calls"
   "load" "constant-rate"
   "tools/load/call-schedule.lisp" "(/ (schedule-start schedule) generators)"
   "(schedule-start schedule)"))

(define-promises "doc/tools/profile.md"
  ("A sample is attributed to the innermost frame that belongs to a subsystem"
   "profile" "a-stack-belongs-to-the-first-that-is-anybody"
   "tools/profile/area.lisp" "(find-if #'frame-area frames)"
   "(find-if #'frame-area frames :from-end t)"))
