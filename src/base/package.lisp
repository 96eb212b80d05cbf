;;;; The vocabulary that every folder above uses. `clgrpc.base` is the one package besides `cl` that
;;;; the others `:use`; it has nothing about networks, protocols or the life of threads.

(defpackage #:clgrpc.base
  (:use #:cl)
  (:import-from #:clgrpc.kernel
                #:define-kernel #:inst #:memory #:repeat-constant #:+kernels-p+ #:avx2-p)
  (:import-from #:sb-ext #:defglobal #:compare-and-swap #:atomic-incf #:atomic-decf)
  (:export
   ;; policy.lisp
   #:define-hot #:define-leaf #:leaves #:document-functions #:define-printer
   ;; interrupt.lisp
   #:uninterrupted #:with-undoing
   ;; version.lisp
   #:**version**
   ;; octets.lisp
   #:octet #:octets #:index #:make-octets #:octets-of #:copy-octets #:subseq-octets
   #:shorten-octets #:octets-equal #:with-sap #:%copy-memory #:prefetch-behind
   #:u16be #:u24be #:u32be #:u64be #:u32le #:u64le
   #:buffer #:make-buffer #:buffer-octets #:buffer-start #:buffer-end #:buffer-fill
   #:buffer-room #:ensure-buffer-room #:append-octets #:append-octet #:clear-buffer
   ;; octet-store.lisp
   #:borrow-octets #:give-octets-back
   ;; collector.lisp
   #:tune-collector #:due-collection #:make-collector-watch #:retune-collector
   ;; condition.lisp
   #:clgrpc-error #:misuse #:misuse-text #:function-failed #:function-failed-cause
   #:with-function-failed
   #:limit-exceeded #:limit-exceeded-option #:limit-exceeded-limit #:limit-exceeded-actual
   ;; text/split.lisp
   #:with-text-type #:char-position #:split-list
   ;; text/percent-encoding.lisp
   #:percent-decoded #:percent-decoded-text #:percent-octets
   ;; text/url.lisp
   #:split-url #:host-and-port
   ;; hash-seed.lisp
   #:hash-seed #:+golden-step+ #:+signed-golden-step+ #:mixed-word
   ;; heap.lisp
   #:heap-condition-p #:heap-used
   #:heap-size #:heap-spare #:collection-epoch #:search-due-p
   #:search-for-garbage
   #:promise-octets #:settle-octets #:collect-for-room #:known-heap-p
   ;; raw.lisp
   #:make-raw-vector
   ;; utf8.lisp
   #:invalid-utf8 #:invalid-utf8-position #:utf8-length #:encode-utf8 #:decode-utf8
   #:string-octets #:octets-string #:ascii-octets #:octets-ascii #:ascii-string
   #:%ascii-string #:decode-wide-utf8 #:encode-wide-utf8
   #:%copy-base-string #:%narrow-string #:%wide-utf8-length #:%copy-plain #:wide-string
   ;; base64.lisp
   #:encode-base64 #:decode-base64 #:base64-p #:invalid-base64 #:invalid-base64-position
   ;; clock.lisp
   #:clock #:nanoseconds #:monotonic-ns #:suspended-ns #:thread-time-ns
   #:real-time-ns
   #:+ns-per-second+ #:seconds-ns #:ns-seconds #:time-after
   ;; number.lisp
   #:finite-p #:clamp
   ;; timer.lisp
   #:timer #:make-timer #:timer-wheel #:make-timer-wheel #:timer-pending-p #:timer-due-ns
   #:schedule-timer #:cancel-timer #:advance-wheel #:next-due-ns #:wheel-count
   #:timers-due-p #:timer-wheel-earliest-ns
   ;; ring.lisp
   #:ring #:make-ring #:isolate-ring #:ring-first #:ring-last #:ring-list #:enter-ring
   #:quit-ring
   ;; account.lisp
   #:account #:make-account #:**process-account** #:account-whole #:account-sum
   #:call-on-excess #:charge-own #:charge-account #:discharge-account
   #:close-account #:account-closed-p #:collect-due-generation
   ;; replay.lisp
   #:octet-budget #:make-octet-budget
   #:replay #:make-replay #:replay-messages #:keep-message #:release-replay
   ;; whole-file.lisp
   #:file-octets
   ;; fifo.lisp
   #:fifo #:make-fifo #:fifo-items #:enqueue #:enqueue-first #:enqueue-in-order #:dequeue
   #:remove-from-fifo #:clear-fifo
   ;; suggestion.lisp
   #:suggested-name
   ;; keyword-function.lisp, arity.lisp
   #:define-keyword-function #:accepted-keywords #:check-arity #:check-arities
   ;; log/printable.lisp
   #:printable-text #:quoted-octets #:write-printable #:unsafe-char-p #:bounded-text
   #:with-bounded-text
   ;; log/channel-trace.lisp
   #:new-number #:channel-trace #:make-channel-trace #:channel-trace-number #:channel-trace-born-ns
   #:channel-trace-count #:note-channel-event #:channel-events
   #:channel-event-text #:channel-event-severity #:channel-event-ns #:channel-event-child
   #:channel-event-child-name
   #:make-registry #:enter-registry #:quit-registry #:registered
   ;; log.lisp, trace.lisp, journal.lisp
   #:*log-function* #:*backtrace-arguments* #:add-log-listener #:remove-log-listener #:log-event
   #:**log-context** #:log-condition
   #:tracers #:tracer-table #:tracer #:tracer-name #:tracer-text #:tracer-aliases #:tracer-meaning
   #:tracing-p #:trace-event
   #:log-writer #:log-value-text #:log-errors #:log-in-background #:flush-log #:read-environment
   #:note-lost-entries #:lost-entries #:open-journal #:add-to-journal #:call-when-written
   ;; decimal.lisp
   #:digits-double #:digits-single #:rational-double #:rational-single
   #:decimal-digits #:float-decimal
   ;; json.lisp
   #:parse-json #:write-json
   #:json-error #:json-error-line #:json-error-column #:json-error-text
   #:json-reader #:make-json-reader #:json-reader-octets #:json-reader-position
   #:json-reader-depth
   #:next-json #:skip-json-space #:skip-json-value #:read-json-string
   #:read-json-word #:scan-json-number #:do-json-members #:do-json-elements
   #:expect-json-end #:line-and-column
   #:append-ascii #:append-json-string #:append-json-integer
   #:buffer-string))
