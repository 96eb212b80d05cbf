;;;; The parts of a call that only some calls need, by subject. Each part is made when it is first
;;;; needed: its incoming messages (INBOUND), its outgoing messages (OUTBOUND), the callbacks of its
;;;; user (CALLBACKS), its end (ENDING), the settings of its user (OWN-OPTIONS). A transport may add
;;;; slots to each part but ENDING: DEFINE-OWN-PART defines structures that include them, and the
;;;; operations NEW-PARTS, NEW-INBOUND, NEW-OUTBOUND, NEW-CALLBACKS and NEW-OWN-OPTIONS make these.

(in-package #:clgrpc.rpc)

(defconstant +batch-octets+ 64
  "The octets charged for a BATCH in addition to its messages, so that the number of empty messages
is limited too.")

(defstruct (batch (:copier nil))
  "Messages that arrived together, or one message."
  (next nil :type (or null batch))      ; the older batch in a stack, the newer one in a queue
  ;; octets with short messages, each after its prefix; or one message, in the form for the
  ;; operation DECODE
  (item nil)
  (size 0 :type index)                  ; octets charged to the call until the last message is taken
  (at 0 :type index)                    ; the beginning of the next short message
  (end 0 :type index))                  ; the end of the last message

(declaim (sb-ext:freeze-type batch))

(define-printer (batch batch)
  "~D octets charged" (batch-size batch))

(defstruct (wait-queue (:copier nil))
  "The threads that wait for a call: they sleep on its futex."
  (ringing nil :type boolean)           ; set on the loop: the sleepers wake when the turn ends
  (sleepers 0 :type sb-ext:word)        ; threads that sleep here or are about to; atomic
  (futex (os:make-futex) :type os:futex)) ; the futex on which these threads sleep

(declaim (sb-ext:freeze-type wait-queue))

(defstruct (outcome (:copier nil))
  "The end of a call. A call that ended with :ok and without text and details has no outcome."
  (message "" :type string)             ; the text of the status
  (details nil :type (or null octets))  ; the value of grpc-status-details-bin
  (ended-by :peer :type symbol)         ; see RPC-ERROR-ENDED-BY
  (cause nil)                           ; the frame, code or errno that caused the end, or nil
  (sent t)                              ; false if the request certainly never reached the peer
  (stage nil :type symbol)              ; the stage of the call when it ended, see CALL-STAGE
  (last-error nil :type (or null string)) ; the last failure in STAGE
  (unsent 0 :type index))               ; octets that the peer had not received

(declaim (sb-ext:freeze-type outcome))

(defmethod print-object ((outcome outcome) stream)
  (print-unreadable-object (outcome stream :type t)
    (write-printable (outcome-message outcome) stream :limit 200 :quoted t)
    (format stream ", ended by ~(~A~)" (outcome-ended-by outcome))))

(defstruct (inbound (:copier nil))
  "The incoming side of a call: the queue of the messages that arrived."
  (incoming nil :type (or null batch))  ; a stack: the owner pushes, the receiver takes all
  (received nil :type (or null batch))  ; of the receiving thread, oldest first
  (queued-octets 0 :type sb-ext:word)   ; the charge of all batches in the queue; atomic
  (batch nil :type (or null batch))     ; of the loop: short messages of a read, not queued yet
  (filter nil :type (or null function))) ; the function of FILTER-MESSAGES that interceptors gave

(defstruct (outbound (:copier nil))
  "The outgoing side of a call."
  (unsent-octets 0 :type sb-ext:word)   ; octets posted to the loop and not yet sent; atomic
  (writable-wanted t :type boolean)     ; ON-WRITABLE must be called when there is room
  (filter nil :type (or null function))) ; the function of interceptors, see FILTER-MESSAGES

(defstruct (callbacks (:copier nil) (:predicate nil))
  "The callbacks of a call's user, which run on its loop. Each transport adds its own data about
runs of the callbacks."
  (on-message nil :type (or null function)) ; see ON-MESSAGE
  (on-half-close nil :type (or null function)) ; see ON-HALF-CLOSE
  (on-cancel nil :type (or null function)) ; see ON-CANCEL
  (on-writable nil :type (or null function)) ; see ON-WRITABLE
  (on-ended '() :type list))            ; functions of ON-END

(defconstant +most-failed-attempts+ 32
  "The maximum number of failed attempts that a call remembers.")

(defstruct (ending (:copier nil))
  "The outcome with which a call has ended, or will end."
  (attempts 0 :type index) ; of a call with failed attempts: how many have begun
  (failed '() :type list)               ; the elements of FAILED-ATTEMPTS, the newest first
  (outcome nil :type (or null outcome)) ; nil for :ok without text and details
  (trailers '() :type list)             ; the alist that a handler sends
  ;; the trailer fields from the peer, in the form of the transport
  (trailer-fields #() :type simple-vector))

(defstruct (own-options (:copier nil))
  "The settings that the user of a call has made."
  (metadata '() :type list)             ; metadata to send with the headers, an alist
  (send-limit nil :type (or null index)) ; the most octets of a request, if not the channel's limit
  (receive-limit nil :type (or null index))) ; the most octets of a response, if not the channel's
                                             ; limit

(defstruct (parts (:copier nil))
  "The parts of a call, each nil until it is needed."
  (wait-queue nil :type (or null wait-queue)) ; the wait queue for threads that wait for the call
  (inbound nil :type (or null inbound)) ; the incoming messages
  (outbound nil :type (or null outbound)) ; the outgoing messages
  (callbacks nil :type (or null callbacks)) ; the callbacks of the user
  (ending nil :type (or null ending))   ; the end of the call
  (own-options nil :type (or null own-options)) ; the settings of the user
  (values '() :type list))              ; an alist, see call-value.lisp

(declaim (sb-ext:freeze-type ending))

(macrolet ((define-makers (&rest parts)
             (flet ((name (control part) (intern (format nil control part))))
               `(progn
                  ,@(loop for part in parts
                          collect `(defun ,(name "NEW-~A" part) (call)
                                     ,(format nil "The operation NEW-~A of a transport that ~
                                                   adds no slots." part)
                                     (declare (ignore call))
                                     (,(name "MAKE-~A" part))))))))
  (define-makers parts inbound outbound callbacks own-options))
