;;;; The structures of a run under way. A GENERATOR is an event loop with its thread and the calls
;;;; that run on it. A generator has CONNECTION-SLOTS: places for one connection each, which is made
;;;; again when it is lost. A LOAD-CALL is one call, from when it is due until it has ended; load
;;;; calls are used again.
;;;;
;;;; Everything of a generator is touched on its loop only, but for a few counters that the main
;;;; thread reads for its progress line.

(in-package #:clgrpc.load)

(defstruct (load-call (:constructor %make-load-call (generator)) (:copier nil))
  "A call."
  (generator nil)                       ; whose it is
  (connection-slot nil)                 ; where it goes
  (connection nil)                      ; that it has a stream of
  (stream nil :type (or null http2:stream)) ; that it has
  (request nil :type (or null request)) ; the method and the messages
  (number 0 :type quantity) ; of the request, over all generators
  (intended-ns 0 :type nanoseconds)     ; when it was to begin; its latency counts from then
  (made-ns 0 :type nanoseconds)         ; when it was made; its timeout counts from then
  (begun-ns 0 :type nanoseconds)        ; when it got its stream
  (sent-ns 0 :type nanoseconds)         ; when its first octets went to the kernel; 0 before
  (counted nil :type boolean)           ; it is not part of a warm-up
  (waited nil :type boolean)            ; it had to wait for a connection
  (retried nil :type boolean)           ; the peer has not processed it once
  (frames #() :type frames)             ; its requests
  (next-frame 0 :type quantity) ; how many requests it has sent
  (prefix 0 :type (integer 0 5))        ; octets seen of the prefix of a response under way
  (left 0 :type (unsigned-byte 32))     ; octets that this response still lacks
  (responses 0 :type quantity) ; whole ones
  (response-ns 0 :type nanoseconds)     ; when the last of them came; before, when it was begun
  (encoded nil :type boolean)           ; its response has a grpc-encoding
  (timer nil :type (or null timer))     ; of a stream's pace or end; made when first needed
  (ended nil :type boolean)             ; it is used again once neither of the next two holds it
  (queued nil :type boolean)            ; in its connection slot's queue
  (chained nil :type boolean)           ; among those that its connection has not flushed
  (later nil :type (or null load-call)) ; in one of these two
  ;; among the generator's, by MADE-NS, or those to be used again
  (next nil :type (or null load-call))
  (previous nil :type (or null load-call))) ; among the generator's

(defstruct (connection (:copier nil))
  "A connection of a connection slot."
  (connection-slot nil)                 ; whose it is
  (http2 nil :type (or null http2:connection)) ; the core
  (socket nil :type (or null loop:connection)) ; the loop's
  (backend nil :type (or null share-row)) ; the counts of its peer
  (unflushed nil :type (or null load-call)) ; calls whose first octets are in the output, chained
  (ready nil :type boolean)             ; the peer's SETTINGS have come
  (used nil :type boolean)              ; a call has begun on it
  (stopped nil :type boolean)           ; it is not read until output has left
  (failure nil :type (or null string))) ; why it has ended

(defstruct (connection-slot (:copier nil))
  "A place for a connection."
  (generator nil)                       ; whose it is
  (number 0 :type index)                ; over all generators
  (target "" :type t)                   ; its target, one of the loop's
  (connection nil :type (or null connection)) ; for new calls
  ;; :WAITING is for the next attempt to connect, after one that failed
  (state :connecting :type (member :connecting :ready :waiting :closed))
  (failure "no connection yet" :type string) ; why the last attempt failed
  (backend nil :type (or null share-row)) ; of calls that fail without a connection
  ;; connections in a row that failed or were lost before they had a call
  (failures 0 :type index)
  (quota 0 :type fixnum)                ; calls that may be under way
  (flying 0 :type fixnum)               ; calls that are due and have not ended
  (begun 0 :type fixnum)                ; of these, those with a stream
  (queue-head nil :type (or null load-call)) ; of those without one, in order
  (queue-tail nil :type (or null load-call)) ; the last of them
  (timer nil :type (or null timer)))    ; ends :WAITING

(defstruct (generator (:copier nil))
  "An event loop and the calls that run on it."
  (plan nil :type plan)                 ; the plan of the run
  (number 0 :type index)                ; which generator it is
  (loop nil :type loop:event-loop)      ; where all is done
  (tally (make-tally) :type tally)      ; the notes of calls that count
  (pool (http2:make-pool))              ; shared by its connections
  (connection-slots #() :type simple-vector) ; its CONNECTION-SLOTS
  (next-connection-slot 0 :type index)  ; which has the next call of an open loop
  (data nil :type (or null call-data))  ; for templates
  (now 0 :type nanoseconds)             ; when the event under way came
  ;; when what happens
  (begin-ns 0 :type nanoseconds)        ; the run began; 0 before
  (measure-ns 0 :type nanoseconds)      ; the warm-up ends
  (end-ns +never-ns+ :type nanoseconds) ; no call begins from then on
  (last-end-ns 0 :type nanoseconds)     ; the last call that counts ended
  (stopped-ns 0 :type nanoseconds)      ; calls ceased to begin before their time; 0 if not
  (measuring nil :type boolean)         ; calls that count have begun
  (pacer nil :type (or null pacer))     ; of an open loop
  (due-ns 0 :type nanoseconds)          ; when the next call of it is due
  (burst 1 :type fixnum)                ; how many calls of it were due at one time, at most
  (pace-timer nil :type (or null timer)) ; rings then
  (tick-timer nil :type (or null timer)) ; rings ten times a second
  (tick-due-ns +never-ns+ :type nanoseconds) ; when that is to ring next
  (expiry-timer nil :type (or null timer)) ; rings when the oldest call has had its time
  ;; calls
  (made 0 :type quantity) ; so far
  (counted 0 :type quantity) ; of these, those behind the warm-up
  (left +never-ns+ :type quantity) ; that are still to be made
  (skip 0 :type quantity) ; of those behind the warm-up that do not count
  (capped 0 :type quantity) ; calls that waited since all workers were busy
  (crowded 0 :type quantity)            ; calls that waited since the peer allows no more streams
  (streams-allowed 0 :type (unsigned-byte 32)) ; how many it allows on a connection, if some waited
  (stall-ns 0 :type nanoseconds)        ; for how long the loop stood still at most, in the run
  (flying 0 :type fixnum)               ; due and not ended
  (oldest nil :type (or null load-call)) ; of them
  (youngest nil :type (or null load-call)) ; of them
  (free nil :type (or null load-call))  ; to be used again
  (ready-p nil :type boolean)           ; each connection slot has tried to connect
  (stopping nil :type boolean)          ; no more calls are made
  (dropping nil :type boolean)          ; calls that end now do not count
  (done nil :type boolean)              ; all has ended
  (error nil :type (or null condition)) ; an error of ours that has ended the run
  (on-event nil :type (or null function))) ; (generator) is called when READY-P or DONE becomes true

(declaim (sb-ext:freeze-type load-call connection connection-slot generator))

(defun generator-wheel (generator)
  (loop:event-loop-wheel (generator-loop generator)))

(define-hot note-now ((generator generator)) nanoseconds
  "Note the present time as that of GENERATOR's next events; return it."
  (setf (generator-now generator) (loop:read-clock (generator-loop generator))))
