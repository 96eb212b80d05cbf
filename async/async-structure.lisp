;;;; The user's data of a loop in addition to handles: a PROGRAM, which the loop keeps in its DATUM.
;;;; The program is made when it is first needed, so a loop that only gRPC uses has no program.

(in-package #:clgrpc.async)

(deftype callback ()
  "A function, or a symbol that names one, which is looked up again for each call."
  '(or symbol function))

(defstruct (program (:copier nil))
  "The users' objects on one loop. Only the thread that runs the loop changes them."
  (uses 0 :type index)                  ; handles that keep the loop from ending
  (until-unused nil :type boolean)      ; the loop ends when USES becomes 0
  ;; T: errors in callbacks are logged; a callback: it gets the errors; NIL: errors are not caught
  (catch-errors t :type (or boolean callback))
  (errors-to-event-cb t :type boolean)  ; caught errors go to the event callback if there is one
  (exit-callbacks '() :type list)       ; functions, the last added first
  (signal-handlers '() :type list)      ; SIGNAL-WATCHes
  (incoming 0 :type index)              ; open sockets that servers have accepted
  (outgoing 0 :type index)              ; open sockets that TCP-CONNECT and PIPE-CONNECT have made
  (lookups 0 :type index))             ; look-ups under way

(declaim (sb-ext:freeze-type program))

(defun begin-program (loop)
  "Give LOOP a program, unless another thread does so first; return LOOP's program."
  (let ((program (make-program)))
    (or (compare-and-swap (loop:event-loop-datum loop) nil program) program)))

(define-hot loop-program ((loop event-loop)) program
  "The objects that users have made on LOOP. From any thread."
  (or (loop:event-loop-datum loop) (begin-program loop)))
