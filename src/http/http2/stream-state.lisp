;;;; The life of a stream (RFC 9113 section 5.1) as one table: (state, input) -> (action, next
;;;; state). The states "reserved" are absent, since both ends refuse server push. A stream that
;;;; ended by a RST_STREAM of ours is in state RESET instead of CLOSED: the peer may have sent
;;;; frames before it received RST_STREAM, so these are processed minimally (HPACK, connection
;;;; window) and dropped.
;;;;
;;;; Actions: ACCEPT processes the input and enters the next state; IGNORE drops it; STREAM-ERROR
;;;; and CONNECTION-ERROR end stream or connection with a code; REFUSE means that our own side may
;;;; not send this now. Only ACCEPT changes the state. The table compiles to one vector of 16-bit
;;;; entries.

(in-package #:clgrpc.http2)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *states* '(idle open half-closed-local half-closed-remote closed reset))
  (defparameter *inputs* '(receive-headers receive-headers-end receive-data receive-data-end
                           receive-reset receive-window-update receive-priority
                           send-headers send-headers-end send-data send-data-end send-reset))
  (defparameter *actions* '(accept ignore stream-error connection-error refuse))

  (defun constant-name (symbol)
    (intern (format nil "+~A+" symbol)))

  (defun encode-step (state action next)
    "Return a 16-bit entry: 3 bits of action, 5 bits of error code, 3 bits of the next state."
    (destructuring-bind (action &optional code) (if (consp action) action (list action))
      (logior (or (position action *actions*) (error "No action ~S." action))
              (ash (if code (symbol-value (constant-name code)) 0) 3)
              (ash (position (or next state) *states*) 8))))

  (defun compile-state-table (rows)
    "Convert ROWS of (state (input action next section)…) to the vector of the table."
    (let ((table (make-array 128 :element-type '(unsigned-byte 16) :initial-element #xFFFF)))
      (loop for (state . cells) in rows
            do (loop for (input action next) in cells
                     for at = (+ (* 16 (position state *states*)) (position input *inputs*))
                     do (assert (= #xFFFF (aref table at)) () "~S ~S is there twice." state input)
                        (setf (aref table at) (encode-step state action next)))
               (assert (= (length cells) (length *inputs*)) () "~S lacks an input." state))
      table)))

(macrolet ((define-ordinals (list)
             `(progn ,@(loop for symbol in (symbol-value list)
                             for i from 0
                             collect `(defconstant ,(constant-name symbol) ,i)))))
  (define-ordinals *states*)
  (define-ordinals *inputs*)
  (define-ordinals *actions*))

(deftype state () '(unsigned-byte 3))
(deftype input () '(unsigned-byte 4))
(deftype state-step () '(unsigned-byte 16))

(defmacro define-state-table (name &body rows)
  "Define the inline function (NAME state input) -> step from ROWS of (state (input action next
section)…)."
  `(progn
     (defun state-rows ()
       "The rows of the state table as they were declared, for tests and documentation."
       ',rows)
     (define-hot (,name :inline t) ((state state) (input input)) state-step
       (aref (the (simple-array (unsigned-byte 16) (128))
                  ,(compile-state-table rows))
             (+ (* 16 state) input)))))

(define-state-table find-step
  (idle
   (receive-headers       accept                            open               "5.1 idle")
   (receive-headers-end   accept                            half-closed-remote "5.1 idle")
   (receive-data          (connection-error protocol-error) nil                "5.1 idle")
   (receive-data-end      (connection-error protocol-error) nil                "5.1 idle")
   (receive-reset         (connection-error protocol-error) nil                "6.4")
   (receive-window-update (connection-error protocol-error) nil                "5.1 idle")
   (receive-priority      accept                            idle               "6.3")
   (send-headers          accept                            open               "5.1 idle")
   (send-headers-end      accept                            half-closed-local  "5.1 idle")
   (send-data             refuse                            nil                "5.1 idle")
   (send-data-end         refuse                            nil                "5.1 idle")
   (send-reset            refuse                            nil                "6.4"))
  (open
   (receive-headers       accept                            open               "8.1")
   (receive-headers-end   accept                            half-closed-remote "5.1 open")
   (receive-data          accept                            open               "5.1 open")
   (receive-data-end      accept                            half-closed-remote "5.1 open")
   (receive-reset         accept                            closed             "5.1 open")
   (receive-window-update accept                            open               "6.9")
   (receive-priority      accept                            open               "6.3")
   (send-headers          accept                            open               "8.1")
   (send-headers-end      accept                            half-closed-local  "5.1 open")
   (send-data             accept                            open               "5.1 open")
   (send-data-end         accept                            half-closed-local  "5.1 open")
   (send-reset            accept                            reset              "5.1 open"))
  (half-closed-local
   (receive-headers       accept                            half-closed-local  "8.1")
   (receive-headers-end   accept                            closed             "5.1 half-closed")
   (receive-data          accept                            half-closed-local  "5.1 half-closed")
   (receive-data-end      accept                            closed             "5.1 half-closed")
   (receive-reset         accept                            closed             "5.1 half-closed")
   (receive-window-update accept                            half-closed-local  "5.1 half-closed")
   (receive-priority      accept                            half-closed-local  "6.3")
   (send-headers          refuse                            nil                "5.1 half-closed")
   (send-headers-end      refuse                            nil                "5.1 half-closed")
   (send-data             refuse                            nil                "5.1 half-closed")
   (send-data-end         refuse                            nil                "5.1 half-closed")
   (send-reset            accept                            reset              "5.1 half-closed"))
  (half-closed-remote
   (receive-headers       (stream-error stream-closed)      nil                "5.1 half-closed")
   (receive-headers-end   (stream-error stream-closed)      nil                "5.1 half-closed")
   (receive-data          (stream-error stream-closed)      nil                "5.1 half-closed")
   (receive-data-end      (stream-error stream-closed)      nil                "5.1 half-closed")
   (receive-reset         accept                            closed             "5.1 half-closed")
   (receive-window-update accept                            half-closed-remote "5.1 half-closed")
   (receive-priority      accept                            half-closed-remote "6.3")
   (send-headers          accept                            half-closed-remote "8.1")
   (send-headers-end      accept                            closed             "5.1 half-closed")
   (send-data             accept                            half-closed-remote "5.1 half-closed")
   (send-data-end         accept                            closed             "5.1 half-closed")
   (send-reset            accept                            reset              "5.1 half-closed"))
  (closed
   (receive-headers       (connection-error stream-closed)  nil                "5.1 closed")
   (receive-headers-end   (connection-error stream-closed)  nil                "5.1 closed")
   (receive-data          (stream-error stream-closed)      nil                "6.1")
   (receive-data-end      (stream-error stream-closed)      nil                "6.1")
   (receive-reset         ignore                            nil                "5.1 closed")
   (receive-window-update ignore                            nil                "5.1 closed")
   (receive-priority      accept                            closed             "6.3")
   (send-headers          refuse                            nil                "5.1 closed")
   (send-headers-end      refuse                            nil                "5.1 closed")
   (send-data             refuse                            nil                "5.1 closed")
   (send-data-end         refuse                            nil                "5.1 closed")
   (send-reset            refuse                            nil                "5.1 closed"))
  (reset
   (receive-headers       ignore                            nil                "5.1 closed")
   (receive-headers-end   ignore                            nil                "5.1 closed")
   (receive-data          ignore                            nil                "5.1 closed")
   (receive-data-end      ignore                            nil                "5.1 closed")
   (receive-reset         ignore                            nil                "5.1 closed")
   (receive-window-update ignore                            nil                "5.1 closed")
   (receive-priority      accept                            reset              "6.3")
   (send-headers          refuse                            nil                "5.1 closed")
   (send-headers-end      refuse                            nil                "5.1 closed")
   (send-data             refuse                            nil                "5.1 closed")
   (send-data-end         refuse                            nil                "5.1 closed")
   (send-reset            refuse                            nil                "5.1 closed")))

(define-hot (step-action :inline t) ((step state-step)) (unsigned-byte 3)
  "The action to take: one of the action constants."
  (logand step 7))

(define-hot (step-code :inline t) ((step state-step)) (unsigned-byte 5)
  "The error code of an action that ends the stream or the connection."
  (ldb (byte 5 3) step))

(define-hot (step-next :inline t) ((step state-step)) state
  "The state to enter if the action is ACCEPT."
  (ldb (byte 3 8) step))

(define-hot (sending-state-p :inline t) ((state state)) boolean
  "True if our side may still send DATA or trailers in STATE."
  (or (= state +open+) (= state +half-closed-remote+)))

(define-hot (receiving-state-p :inline t) ((state state)) boolean
  "True if the peer may still send DATA or trailers in STATE."
  (or (= state +open+) (= state +half-closed-local+)))
