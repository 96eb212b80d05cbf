;;;; The structures of in-process calls.
;;;;
;;;; A CALLEE is the serving end: a server, or a single service object. An INPROC-CORE is the other
;;;; end, a channel. A call has two INPROC-CALLs, one for the caller and one for the handler, which
;;;; are joined by a CALL-PAIR. Nearly all unary calls are answered by their handler on the caller's
;;;; thread; such a call needs no call pair, and the caller's INPROC-CALL is made when the call has
;;;; ended. So it consists of two objects of 80 octets.

(in-package #:clgrpc.inproc)

(defstruct (inproc-route (:include serving:route) (:conc-name route-) (:copier nil))
  "The route of a method within the image."
  (kept nil :type (or null function)))  ; the handler that last kept its call

(declaim (sb-ext:freeze-type inproc-route))

(defstruct (callee (:copier nil))
  "The end that is called: a server, or a service object without a server."
  (server nil :type (or null serving:server)) ; nil if only a service object is called
  (services '() :type list)             ; the service objects
  (interceptors '() :type list)         ; interceptors around the handlers of these services
  (options nil :type options)           ; the server's limits
  (observer nil :type (or null rpc:observer)) ; the server's
  (name nil :type (or null string))     ; the callee's first address inproc:NAME
  ;; true if the callee's calls belong to relays, which report attempts themselves
  (relays nil :type boolean)
  (table nil :type (or null serving:route-table)) ; the routes of SERVICES
  ;; :closed once the server stops, :abandoned once the server has stopped waiting for calls
  (state :open :type (member :open :closed :abandoned))
  (ending '() :type list)               ; (status text) for the calls that are abandoned
  (tally (make-tally) :type tally)      ; the tally of the callee's calls
  ;; a second callee, for calls to this one that wait for their credentials; nil until it is needed.
  ;; The slot of the second callee refers to the callee itself
  (asking nil :type (or null callee))
  (lock (sb-thread:make-mutex :name "clgrpc in-process callee")
        :read-only t) ; the lock of CALL-PAIRS and TABLE
  (call-pairs (make-hash-table :test 'eq) :type hash-table)) ; the registered call pairs

(declaim (sb-ext:freeze-type callee))

(define-printer (callee callee)
  "~:[~;~:*~A ~]~(~A~) ~{~(~A~)~^ ~}" (callee-name callee) (callee-state callee)
  (mapcar (lambda (service) (class-name (class-of service))) (callee-services callee)))

(defstruct (inproc-core (:copier nil))
  "The data that all calls of a channel share."
  (target "" :type string)              ; the channel's target, as its user gave it
  (callee nil :type (or null callee))   ; looked up by NAME if that is not nil
  (former '() :type list)               ; earlier callees of NAME that have open calls; atomic
  (name nil :type (or null string))     ; inproc:NAME, if the channel was made for a name
  (options nil :type options)           ; the channel's limits
  (observer nil :type (or null rpc:observer)) ; the channel's observer
  (share nil :type boolean)             ; messages are passed without a copy
  ;; where handlers run: on their callers' threads, on other threads, or on the loop in this slot
  (execution :caller :type (or (member :caller :threads) loop:event-loop))
  (open t :type boolean)                ; true until CLOSE-CHANNEL
  ;; the channel serves direct calls of a service: no user closes it
  (direct nil :type boolean)
  (loop nil :type (or null loop:event-loop)) ; the loop for timers and threads, once it is needed
  (handlers 0 :type sb-ext:word)        ; handlers that run on other threads; atomic
  (waiting nil :type (or null simple-vector)) ; calls that have not begun: see waiting.lisp
  (watched nil :type boolean)           ; a timer checks WAITING
  ;; the clock of the deadlines of its calls
  (clock (loop:world-clock loop:*world*) :type function :read-only t)
  (client-operations nil :type rpc:operations :read-only t) ; the operations of the clients' ends
  ;; the server operations of the handlers' ends
  (server-operations nil :type rpc:operations :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc in-process channel") :read-only t)) ; guards LOOP

(declaim (sb-ext:freeze-type inproc-core))

(define-hot (observed-p :inline t) ((inproc-core inproc-core) (callee callee)) boolean
  "True if calls of INPROC-CORE to CALLEE have to be reported to an observer or a tracer."
  (or (and (or (inproc-core-observer inproc-core) (callee-observer callee)) t)
      (tracing-p :call)))

(defstruct (call-counts (:copier nil))
  "The counts of the messages between the two ends of an observed call. The object is a value
(CALL-VALUE) of both ends."
  (began-ns 0 :type nanoseconds)        ; when the call began
  (arrived-ns 0 :type nanoseconds)      ; when the server got the call, perhaps after credentials
  (requests 0 :type sb-ext:word)        ; octets of messages that the client has sent
  (responses 0 :type sb-ext:word)       ; octets of messages that the handler has sent
  (attempt nil :type boolean)           ; an attempt under way was reported for the call
  ;; functions that report to the server's observer once the server has the call; the newest first
  (untold '() :type list))

(declaim (sb-ext:freeze-type call-counts))

(define-printer (call-counts call-counts)
  "~D octets there, ~D back" (call-counts-requests call-counts)
  (call-counts-responses call-counts))

(defstruct (consumer (:constructor make-consumer (function handlers restarts call)) (:copier nil))
  "A function of the client's user that a handler calls on its client's thread, and the context in
which that function runs."
  (function nil :type (or null function)) ; the body that consumes a stream, or nil
  (handlers nil :type list)             ; condition handlers, in SBCL's form
  (restarts nil :type list)             ; restarts, in SBCL's form
  (call nil :type (or null call))       ; the current call
  (inside nil :type boolean))           ; the body runs

(declaim (sb-ext:freeze-type consumer))

(deftype mailbox ()
  "A word for two threads, between unused words, so that its cache line has nothing else."
  '(simple-vector 24))

(defconstant +mailbox-index+ 12 "The index of the used word of a mailbox.")

(defconstant +cache-line-octets+ 64)

(defstruct (call-pair (:constructor make-call-pair (callee route request)) (:copier nil))
  "The data that the two ends of a call share."
  (callee nil :type (or null callee))   ; nil if no callee existed
  (route nil :type (or null inproc-route)) ; the route to the handler
  (request nil)                         ; the request of a method that takes a single one
  (client nil :type (or null call))     ; the caller's end
  (server nil :type (or null call))     ; the handler's end
  ;; :waiting until the handler begins, or :asking while the call waits for its credentials; then
  ;; the handler's thread if that is the caller's or the consumer's, else :elsewhere; :over once the
  ;; handler has returned
  (phase :waiting)
  (consumer nil :type (or null consumer)) ; the consumer of the handler's messages
  (source nil :type (or null function)) ; user code that returns the next request
  (ready '() :type list)                ; requests, the oldest first
  (eager nil :type boolean)             ; the handler runs although the client does not wait
  ;; requests that were sent before the handler began, the newest first; :closed from then on
  (held '() :type (or list (eql :closed)))
  (held-octets 0 :type index)           ; the octets of these requests
  (claim nil)                           ; true once a thread has claimed the end
  (overdue nil :type boolean)           ; the call was already waiting at the previous check
  (leaving nil :type boolean)           ; consumer and handler are being unwound
  (queued-reply nil :type boolean)      ; RECEIVE will return the reply
  (reply nil)                           ; the answer of a method that answers once
  (unattended nil :type boolean)        ; no thread waits in the call's stub
  (completions '() :type loop:completions) ; of the call, which is a future
  ;; the mailbox of messages for the client: see message-queue.lisp
  (client-mailbox nil :type (or null mailbox))
  (server-mailbox nil :type (or null mailbox)) ; the mailbox of messages for the handler
  (client-waits nil :type boolean)      ; the client waits for room to send
  (server-waits nil :type boolean)      ; the handler waits for room to send
  (registered nil :type boolean)        ; true once the call is registered with CALLEE
  (entered nil :type (or null loop:event-loop)) ; the loop that counts the call
  (driver nil :type (or null sb-thread:thread)) ; the client, while it runs that loop
  (timer nil))                          ; the timer of the deadline

(declaim (inline %make-inproc-call))
(defstruct (inproc-call (:include call) (:constructor %make-inproc-call
                                            (rpc-method operations deadline fields status
                                             half-closed inproc-core call-pair))
                        (:copier nil))
  "One end of an in-process call."
  (inproc-core nil :type inproc-core)   ; the inproc core of its channel
  (call-pair nil :type (or null call-pair))) ; nil until a call pair is needed

(declaim (sb-ext:freeze-type call-pair inproc-call))

(rpc:define-own-part callbacks (inproc inproc-call)
  "The callbacks of a call within the image."
  ;; see inproc-callback.lisp: true while callbacks run or are about to run
  (scheduled nil :type (member nil t :again))
  (runner nil :type (or null sb-thread:thread)) ; the last thread that ran callbacks
  (timers '() :type list)               ; the timers of AFTER; atomic
  (rung '() :type list))                ; due functions of AFTER, the first one first; atomic

(declaim (sb-ext:freeze-type inproc-callbacks))

(define-hot (call-inproc-core :inline t) ((call inproc-call)) inproc-core
  (inproc-call-inproc-core call))
