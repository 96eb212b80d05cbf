;;;; Connecting. A connector tries the addresses of a host in order, without blocking the loop,
;;;; until one takes the connection or the time is over; a name that is not numeric is looked up on
;;;; a helper thread. Each address gets an equal share of the time that is left. The owner is called
;;;; exactly once, on the loop.

(in-package #:clgrpc.loop)

(defstruct (connector (:include source) (:constructor %make-connector) (:copier nil))
  (address "" :type string)
  (on-done nil :type function)
  (deadline 0 :type nanoseconds)
  (untried '() :type list)
  (socket -1 :type fixnum)
  (trying "" :type string)
  (failure "the time is over" :type string)
  (timer nil :type (or null timer))
  (done nil :type boolean))

(declaim (sb-ext:freeze-type connector))

(defmethod print-object ((connector connector) stream)
  (print-unreadable-object (connector stream :type t)
    (write-string (connector-address connector) stream)))

(defun connect-to (loop host port timeout-ns on-done)
  "Connect to PORT of HOST, a numeric address without brackets or a name, within TIMEOUT-NS
nanoseconds. Then (ON-DONE transport nil) or (ON-DONE nil condition), a CONNECT-ERROR, is called on
LOOP, exactly once and never before this returns. Signal MISUSE if LOOP has stopped. From any
thread."
  (let ((connector (%make-connector
                    :loop loop :on-done on-done
                    :address (format nil (if (find #\: host) "[~A]:~D" "~A:~D") host port)
                    :on-event #'connection-event
                    :on-release (lambda (connector)
                                  (fail-connector connector "the event loop has stopped")))))
    (setf (connector-timer connector) (make-timer #'attempt-timed-out connector))
    (unless (post loop (lambda () (start-connector connector host port timeout-ns)))
      (misuse "~A has stopped; it cannot connect." loop))
    nil))

(defun start-connector (connector host port timeout-ns)
  (let ((loop (connector-loop connector)))
    (push connector (event-loop-unconnected loop))
    (setf (connector-deadline connector) (+ (event-loop-now loop) timeout-ns))
    (multiple-value-bind (addresses failure look-up-p) (os:resolve-host host port :look-up nil)
      (declare (ignore failure))
      (cond (look-up-p
             (schedule-timer (event-loop-wheel loop) (connector-timer connector)
                             (connector-deadline connector))
             (look-up-host connector host port))
            (t (try-addresses connector addresses nil))))))

(defun look-up-host (connector host port)
  "Ask the resolver for HOST on a thread of its own, which posts the answer."
  (sb-thread:make-thread
   (lambda ()
     (multiple-value-bind (addresses failure) (os:resolve-host host port)
       (post (connector-loop connector) (lambda () (try-addresses connector addresses failure)))))
   :name "clgrpc resolver"))

(defun try-addresses (connector addresses failure)
  (unless (connector-done connector)
    (setf (connector-untried connector) addresses)
    (if addresses
        (try-next-address connector)
        (fail-connector connector (or failure "no such host")))))

;;; One attempt

(defun try-next-address (connector)
  "Begin to connect to the next address that can be tried at all, or fail."
  (loop
    (unless (connector-untried connector)
      (return (fail-connector connector (connector-failure connector))))
    (let* ((shares (length (connector-untried connector)))
           (result (begin-attempt connector (pop (connector-untried connector)))))
      (cond ((os:failed-p result)
             (note-failure connector (os:errno-text result)))
            (t (return (limit-attempt connector shares)))))))

(defun limit-attempt (connector shares)
  "Have the attempt that has begun end after one of so many SHARES of the time that is left."
  (let* ((loop (connector-loop connector))
         (now (event-loop-now loop))
         (left (max 0 (- (connector-deadline connector) now))))
    (schedule-timer (event-loop-wheel loop) (connector-timer connector)
                    (+ now (ceiling left shares)))))

(defun note-failure (connector text)
  (setf (connector-failure connector)
        (if (string= (connector-trying connector) (connector-address connector))
            text
            (format nil "~A (~A)" text (connector-trying connector)))))

(defun begin-attempt (connector address)
  "Open a socket, begin to connect it to ADDRESS and watch it. Return a result as the kernel's calls
do."
  (setf (connector-trying connector) (os:address-text address))
  (let ((socket (os:open-socket (os:address-family address))))
    (if (os:failed-p socket)
        socket
        (let ((result (os:connect-socket socket address)))
          (os:set-socket-option socket os:+ipproto-tcp+ os:+tcp-nodelay+ 1)
          (when (or (not (os:failed-p result)) (= result (- os:+einprogress+)))
            (setf result (add-source connector socket)))
          (if (os:failed-p result)
              (os:close-descriptor socket)
              (setf (connector-socket connector) socket))
          result))))

(defun give-up-attempt (connector)
  (let ((socket (shiftf (connector-socket connector) -1)))
    (unless (minusp socket)
      (remove-source connector)
      (os:close-descriptor socket))))

(defun connection-event (connector flags)
  "The socket of CONNECTOR has become connected, or never will."
  (when (logtest flags (logior +writable+ +failed+))
    (let ((errno (os:socket-option (connector-socket connector) os:+sol-socket+ os:+so-error+)))
      (cond ((zerop errno) (finish-connector connector))
            (t (note-failure connector (os:errno-text (- (abs errno))))
               (give-up-attempt connector)
               (try-next-address connector))))))

(defun attempt-timed-out (connector)
  (note-failure connector "no answer in time")
  (give-up-attempt connector)
  (try-next-address connector))

;;; The end

(defun end-connector (connector transport condition)
  (let ((loop (connector-loop connector)))
    (setf (connector-done connector) t
          (event-loop-unconnected loop) (delete connector (event-loop-unconnected loop)))
    (cancel-timer (event-loop-wheel loop) (connector-timer connector))
    (let ((failure (nth-value 1 (guarding (:connect-function-error :connector connector)
                                  (funcall (connector-on-done connector) transport condition)))))
      (when (and failure transport) (close-unowned loop transport failure)))))

(defun finish-connector (connector)
  (let ((socket (shiftf (connector-socket connector) -1)))
    (remove-source connector)
    (end-connector connector (make-tcp-transport socket (connector-trying connector)) nil)))

(defun fail-connector (connector text)
  (unless (connector-done connector)
    (give-up-attempt connector)
    (end-connector connector nil
                   (make-condition 'connect-error :address (connector-address connector)
                                                  :reason text))))
