;;;; The structures of a run under way. A GENERATOR is an event loop with its thread and the calls
;;;; that run on it. A generator has CONNECTION-SLOTS: places for one connection each, which is made
;;;; again when it is lost. A LOAD-CALL is one call, from its due time until its end; load
;;;; calls are used again.
;;;;
;;;; Only a generator's loop reads and writes its data; except that the main thread reads a few
;;;; counters for its progress line.

(in-package #:clgrpc.load)

(defstruct (load-call (:constructor %make-load-call (generator)) (:copier nil))
  "A call."
  (generator nil)                       ; the generator that makes the call
  (connection-slot nil)                 ; the slot on which the call is made
  (connection nil)                      ; the connection to which the call's stream belongs
  (stream nil :type (or null http2:stream)) ; the call's stream, while it has one
  (request nil :type (or null request)) ; the method and the messages
  (number 0 :type quantity) ; the number of the request, over all generators
  (intended-ns 0 :type nanoseconds)     ; when the call was to begin; its latency counts from then
  (made-ns 0 :type nanoseconds)         ; when the call was made; its timeout counts from then
  (begun-ns 0 :type nanoseconds)        ; when the call got its stream
  ;; the time when its first octets went to the kernel; 0 before that
  (sent-ns 0 :type nanoseconds)
  (counted nil :type boolean)           ; the call counts: it began after the warm-up
  (waited nil :type boolean)            ; the call had to wait for a connection
  (retried nil :type boolean)           ; the call was made again: the peer had not processed it
  (frames #() :type frames)             ; the call's requests
  (next-frame 0 :type quantity) ; how many requests the call has sent
  ;; our side has ended, though octets of our side may wait for windows
  (half-closed nil :type boolean)
  (prefix 0 :type (integer 0 5))        ; octets seen of the prefix of a response under way
  (left 0 :type (unsigned-byte 32))     ; octets of this response that have not come yet
  (responses 0 :type quantity) ; the number of whole responses
  ;; the time of the last response; before the first, the time when it began
  (response-ns 0 :type nanoseconds)
  (encoded nil :type boolean)           ; the call's response has a grpc-encoding
  (timer nil :type (or null timer)) ; the timer of a stream's pace or end; made when first needed
  ;; the call has ended; the object is used again once neither QUEUED nor CHAINED is true
  (ended nil :type boolean)
  (queued nil :type boolean)            ; the call is in its connection slot's queue
  (chained nil :type boolean)           ; the call is among the UNFLUSHED of its connection
  (later nil :type (or null load-call)) ; the next call in the slot's queue or among the UNFLUSHED
  ;; the next call of the generator by MADE-NS, or of the calls to be used again
  (next nil :type (or null load-call))
  (previous nil :type (or null load-call))) ; the previous call among the generator's

(defstruct (connection (:copier nil))
  "A connection of a connection slot."
  (connection-slot nil)                 ; the connection slot to which it belongs
  (http2 nil :type (or null http2:connection)) ; the core
  (socket nil :type (or null loop:connection)) ; the loop's
  (backend nil :type (or null share-row)) ; the counts of the connection's peer
  (unflushed nil :type (or null load-call)) ; chained calls: their first octets are unsent
  (ready nil :type boolean)             ; the peer's SETTINGS have come
  (used nil :type boolean)              ; a call has begun on the connection
  (stopped nil :type boolean)           ; the connection is not read until output was sent
  (failure nil :type (or null string))) ; why the connection has ended

(defstruct (connection-slot (:copier nil))
  "A place for a connection."
  (generator nil)                       ; the generator to which the slot belongs
  (number 0 :type index)                ; the slot's number in the whole run
  (target "" :type t)                   ; the target that the slot connects to
  (connection nil :type (or null connection)) ; the connection for new calls
  ;; :WAITING is for the next attempt to connect, after one that failed
  (state :connecting :type (member :connecting :ready :waiting :closed))
  (failure "no answer in time" :type string) ; why the last attempt failed
  (backend nil :type (or null share-row)) ; the counts of calls that fail without a connection
  ;; connections in a row that failed or were lost before they had a call
  (failures 0 :type index)
  (quota 0 :type fixnum)                ; the number of calls that may be under way
  (flying 0 :type fixnum)               ; calls that are due and have not ended
  (begun 0 :type fixnum)                ; how many calls with a stream are under way
  (queue-head nil :type (or null load-call)) ; the first call without a stream, in order
  (queue-tail nil :type (or null load-call)) ; the last call without a stream
  (timer nil :type (or null timer)))    ; ends the state :WAITING

(defstruct (generator (:copier nil))
  "An event loop and the calls that run on it."
  (plan nil :type plan)                 ; the plan of the run
  (number 0 :type index)                ; the number of the generator
  (loop nil :type loop:event-loop)      ; the generator's event loop
  (tally (make-tally) :type tally)      ; the notes of calls that count
  (pool (http2:make-pool))              ; the pool of streams that its connections share
  (connection-slots #() :type simple-vector) ; the generator's CONNECTION-SLOTS
  (next-connection-slot 0 :type index)  ; the slot for the next call of an open loop
  (data nil :type (or null call-data))  ; the data for templates
  (now 0 :type nanoseconds)             ; when the event under way came
  ;; when what happens
  (begin-ns 0 :type nanoseconds)        ; when the run began; 0 before that
  (measure-ns 0 :type nanoseconds)      ; the warm-up ends
  (end-ns +never-ns+ :type nanoseconds) ; no call begins from then on
  (last-end-ns 0 :type nanoseconds)     ; the last call that counts ended
  ;; the time when calls ceased to begin early; 0 if they did not
  (stopped-ns 0 :type nanoseconds)
  (measuring nil :type boolean)         ; calls that count have begun
  (pacer nil :type (or null pacer))     ; the pacer of an open loop
  (due-ns 0 :type nanoseconds)          ; when the next call of the open loop is due
  ;; how many calls of the open loop were due at one time, at most
  (burst 1 :type fixnum)
  (pace-timer nil :type (or null timer)) ; the timer that rings at DUE-NS
  (tick-timer nil :type (or null timer)) ; rings ten times a second
  (tick-due-ns +never-ns+ :type nanoseconds) ; the next time at which the tick timer rings
  (expiry-timer nil :type (or null timer)) ; rings when the oldest call has had its time
  ;; calls
  (made 0 :type quantity) ; calls that were made so far
  (counted 0 :type quantity) ; how many calls began after the warm-up
  (left +never-ns+ :type quantity) ; the number of calls that must still be made
  (skip 0 :type quantity) ; calls after the warm-up that do not count
  (capped 0 :type quantity) ; calls that waited since all workers were busy
  (crowded 0 :type quantity)            ; calls that waited since the peer allows no more streams
  ;; how many streams the peer allows on a connection, if calls waited for one
  (streams-allowed 0 :type (unsigned-byte 32))
  (stall-ns 0 :type nanoseconds)        ; for how long the loop stood still at most, in the run
  (flying 0 :type fixnum)               ; calls that are due and have not ended
  (oldest nil :type (or null load-call)) ; the oldest call that has not ended
  (youngest nil :type (or null load-call)) ; the youngest call that has not ended
  (free nil :type (or null load-call))  ; call objects that can be used again
  (ready-p nil :type boolean)           ; each connection slot has tried to connect
  (stopping nil :type boolean)          ; no more calls are made
  (dropping nil :type boolean)          ; calls that end now do not count
  (done nil :type boolean)              ; true once all has ended
  (error nil :type (or null condition)) ; an error of ours that has ended the run
  (on-event nil :type (or null function))) ; (generator) is called when READY-P or DONE becomes true

(declaim (sb-ext:freeze-type load-call connection connection-slot generator))

(define-hot note-now ((generator generator)) nanoseconds
  "Store the present time as the time of GENERATOR's next events, and return it."
  (setf (generator-now generator) (loop:read-clock (generator-loop generator))))
