;;;; The attempts of a client's call, on every transport: the state machine for retries and hedging,
;;;; and the object by which interceptors access an attempt.

(defpackage #:clgrpc.attempt
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:config #:clgrpc.config))
  (:import-from #:clgrpc.rpc
                #:call #:call-fields #:call-path #:call-rpc-method #:call-value #:failed-attempts
                #:final-status #:interceptors-for #:operate #:trailer-fields #:verdict-error)
  (:import-from #:clgrpc.method #:*call*)
  (:import-from #:clgrpc.status #:check-metadata #:rpc-error #:rpc-error-trailers)
  (:export
   ;; attempt-view.lisp
   #:attempt #:attempt-call #:attempt-kind #:attempt-message #:attempt-metadata #:attempt-number
   #:attempt-peer #:attempt-request-metadata #:attempt-status #:attempt-trailers #:close-attempt
   #:attempt-of #:observer-interceptors #:on-attempt-end #:put-attempt-metadata #:view-attempt
   ;; retry.lisp
   #:add-attempt #:attempt-failure #:commit #:count-repeats #:make-attempt-failure
   #:make-retry-operations #:retries #:take-number #:tell-begun #:tell-due #:tell-failed
   #:tell-failed-late
   #:count-success #:current-throttle #:find-retry-policy #:parse-pushback #:throttle
   #:throttled-p))
