;;;; The parts of a call that only some calls need, by subject. Each is made when it is first
;;;; needed: for its incoming messages (INLET), its outgoing ones (OUTLET), the callbacks of its
;;;; user (REACTIONS), its end (ENDING), the settings of its user (INTENT). A transport may add
;;;; slots to each but ENDING: it includes them in structures of its own, by DEFINE-OWN-PART, which
;;;; the operations NEW-PARTS, NEW-INLET, NEW-OUTLET, NEW-REACTIONS and NEW-INTENT make.

(in-package #:clgrpc.rpc)

(defconstant +arrival-octets+ 64
  "The octets charged for an ARRIVAL in addition to those of its messages, so that the number of
empty messages is limited, too.")

(defstruct (arrival (:copier nil))
  "Messages that arrived together, or one message."
  (next nil :type (or null arrival))    ; older in a stack, newer in a queue
  ;; octets with short messages, each after four octets of its length; or one message in a form that
  ;; the operation DECODE takes
  (item nil)
  (size 0 :type index)                  ; charged to the call until the last message is taken
  (at 0 :type index)                    ; where the next of the short messages begins
  (end 0 :type index))                  ; where the last message ends

(declaim (sb-ext:freeze-type arrival))

(define-printer (arrival arrival)
  "~D octets charged" (arrival-size arrival))

(defstruct (gate (:copier nil))
  "The place where threads sleep that wait for a call."
  (ringing nil :type boolean)           ; the loop's: the sleepers wake when the turn ends
  (sleepers 0 :type sb-ext:word)        ; threads that sleep here or are about to; atomic
  (futex (os:make-futex) :type os:futex)) ; on which these threads sleep

(declaim (sb-ext:freeze-type gate))

(defstruct (outcome (:copier nil))
  "The end of a call. A call that ended with :ok and without text or details has no outcome."
  (message "" :type string)             ; the text of the status
  (details nil :type (or null octets))  ; of grpc-status-details-bin
  (ended-by :peer :type symbol)         ; see RPC-ERROR-ENDED-BY
  (cause nil)                           ; the frame, code or errno that caused the end, or nil
  (sent t)                              ; false if the request certainly never reached the peer
  (stage nil :type symbol)              ; of the call when it ended, see CALL-STAGE
  (last-error nil :type (or null string)) ; the last failure in that stage
  (unsent 0 :type index))               ; octets that the peer had not received

(declaim (sb-ext:freeze-type outcome))

(defmethod print-object ((outcome outcome) stream)
  (print-unreadable-object (outcome stream :type t)
    (write-printable (outcome-message outcome) stream :limit 200 :quoted t)
    (format stream ", ended by ~(~A~)" (outcome-ended-by outcome))))

(defstruct (inlet (:copier nil))
  "The incoming side of a call: the queue of the messages that arrived."
  (incoming nil :type (or null arrival)) ; a stack: the owner pushes, the receiver takes all of it
  (received nil :type (or null arrival)) ; the receiving thread's: oldest first
  (queued-octets 0 :type sb-ext:word)   ; the charge of all arrivals in the queue; atomic
  (batch nil :type (or null arrival))   ; the loop's: short messages of a read, not queued yet
  (filter nil :type (or null function))) ; the function of interceptors, see FILTER-MESSAGES

(defstruct (outlet (:copier nil))
  "The outgoing side of a call."
  (unsent-octets 0 :type sb-ext:word)   ; octets posted to the loop and not yet sent; atomic
  (writable-wanted t :type boolean)     ; ON-WRITABLE is to be called when there is room
  (filter nil :type (or null function))) ; the function of interceptors, see FILTER-MESSAGES

(defstruct (reactions (:copier nil))
  "The callbacks of a call's user, which run on its loop. Each transport adds slots for notes about
their runs."
  (on-message nil :type (or null function)) ; see ON-MESSAGE
  (on-half-close nil :type (or null function)) ; see ON-HALF-CLOSE
  (on-cancel nil :type (or null function)) ; see ON-CANCEL
  (on-writable nil :type (or null function)) ; see ON-WRITABLE
  (on-ended '() :type list))            ; functions; see ON-END

(defconstant +most-failed-attempts+ 32
  "The most failed attempts of a call that are remembered.")

(defstruct (ending (:copier nil))
  "How a call ended, or will end."
  (attempts 0 :type index)              ; of a client's call that is retried: how many have begun
  (failed '() :type list)               ; the elements of FAILED-ATTEMPTS, the newest first
  (outcome nil :type (or null outcome)) ; nil for :ok without text and details
  (trailers '() :type list)             ; a handler's: to be sent, an alist
  (trailer-fields #() :type simple-vector)) ; from the peer, in the form of the transport

(defstruct (intent (:copier nil))
  "The settings that the user of a call has made."
  (metadata '() :type list)             ; to be sent with the headers, an alist
  (send-limit nil :type (or null index)) ; the most octets of a request, if not the channel's limit
  (receive-limit nil :type (or null index))) ; the most octets of a response, likewise

(defstruct (parts (:copier nil))
  "The parts of a call, each nil until it is needed."
  (gate nil :type (or null gate))       ; for threads that wait for the call
  (inlet nil :type (or null inlet))     ; the incoming messages
  (outlet nil :type (or null outlet))   ; the outgoing messages
  (reactions nil :type (or null reactions)) ; the callbacks of the user
  (ending nil :type (or null ending))   ; the end of the call
  (intent nil :type (or null intent))   ; the settings of the user
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
  (define-makers parts inlet outlet reactions intent))
