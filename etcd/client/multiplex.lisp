;;;; The stream of a client's watches. One stream of Watch serves all watches; etcd gives each watch
;;;; a number. The stream begins with the first watch and ends with the last.
;;;;
;;;; 1. The job of a watch joins the stream: it gives the watch a number and requests it from etcd.
;;;; 2. A callback of the stream puts each response into the queue of its watch, and requested
;;;;    progress into the queues of all watches, and wakes their jobs. It never waits.
;;;; 3. When the stream ends, the end is put into the queues of all its watches, which join the next
;;;;    stream, each after its own pause.
;;;; 4. The queue of a watch whose user is slow has at most +MOST-WAITING-OCTETS+ of responses. A
;;;;    watch whose queue exceeds this limit leaves the stream, and joins it again at its position
;;;;    when its user has caught up.
;;;;
;;;; A number is never used again, so responses for a watch that has left are dropped. A thread that
;;;; sends holds SEND-LOCK; a thread that changes the stream's data holds LOCK. A thread that holds
;;;; LOCK takes no other lock than that of a watch.

(in-package #:clgrpc.etcd)

(defconstant +most-waiting-octets+ 16777216
  "The octets of waiting keys and values at which the watch of a slow user leaves the shared
stream.")

(defstruct (multiplex (:constructor make-multiplex ()) (:copier nil))
  "The stream of a client's watches."
  ;; held while a request is sent
  (send-lock (sb-thread:make-mutex :name "clgrpc watch requests") :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc watch stream") :read-only t) ; guards the slots below
  (call nil)                            ; the stream, or nil
  (token nil :type (or null string))    ; the token with which the stream was opened
  (number 0 :type (integer 0))          ; the number that the last watch got
  (watches (make-hash-table) :type hash-table :read-only t) ; the watches of the stream, by number
  ;; (number . watch), those that etcd was asked to begin and has not answered
  (opening (make-fifo) :type fifo :read-only t))

(declaim (sb-ext:freeze-type multiplex))

(define-printer (multiplex multiplex)
  "~D watches" (hash-table-count (multiplex-watches multiplex)))

(defmacro with-multiplex ((multiplex) &body body)
  "Evaluate BODY with the lock of MULTIPLEX. BODY is not interrupted, because WITH-TIMEOUT may
unwind a user's thread, and half of a change would remain."
  `(sb-sys:without-interrupts
     (sb-thread:with-mutex ((multiplex-lock ,multiplex)) ,@body)))

(defun tell-watches (multiplex function)
  "Call FUNCTION with the lock of MULTIPLEX, and wake the jobs of the watches that it returns.
Interrupts are off meanwhile."
  (declare (type function function))
  (sb-sys:without-interrupts
    (dolist (watch (with-multiplex (multiplex) (funcall function)))
      (loop:wake-job (watch-job watch)))))

(defun multiplex-of (etcd)
  "The multiplex of ETCD, made when it is first needed."
  (or (etcd-multiplex etcd)
      (sb-thread:with-mutex ((etcd-lock etcd))
        (or (etcd-multiplex etcd)
            (setf (etcd-multiplex etcd) (make-multiplex))))))

(defun send-request (call request)
  "Send REQUEST on CALL, a stream of watches. Return false if the call has no room, or has ended."
  (handler-case (rpc:try-send call request)
    (status:rpc-error () nil)))

;;; Responses

(defun response-octets (response)
  "About how much of the heap RESPONSE takes."
  (reduce #'+ (pb:watch-response-events response)
          :key (lambda (event)
                 (if-let ((entry (mvccpb:event-kv event)))
                   (+ 200 (length (mvccpb:key-value-key entry))
                      (length (mvccpb:key-value-value entry)))
                   200))))

(defun queue-response (watch response octets)
  "Queue RESPONSE, of OCTETS, for WATCH."
  (sb-thread:with-mutex ((watch-lock watch))
    (enqueue (cons response octets) (watch-responses watch))
    (incf (watch-waiting-octets watch) octets)))

(defun next-response (watch)
  "The next response, or end of stream, in the queue of WATCH; nil if the queue is empty."
  (sb-thread:with-mutex ((watch-lock watch))
    (when-let ((next (and (fifo-items (watch-responses watch))
                          (dequeue (watch-responses watch)))))
      (decf (watch-waiting-octets watch) (cdr next))
      (car next))))

(defun forget-watch (multiplex watch)
  "Take WATCH out of the watches of MULTIPLEX's stream. The caller must hold the lock of MULTIPLEX."
  (when (watch-number watch) (remhash (watch-number watch) (multiplex-watches multiplex))))

(defun begun-watch (multiplex number)
  "The number of the watch that etcd has begun or refused: NUMBER or, if NUMBER is not known, the
number of the watch that was requested first. The caller must hold the lock of MULTIPLEX."
  (let ((opening (multiplex-opening multiplex)))
    (loop for first = (and (fifo-items opening) (car (dequeue opening)))
          while first
          do (when (or (minusp number) (= first number)) (return first)))))

(defun addressees (multiplex response)
  "The watches that RESPONSE is for. The caller must hold the lock of MULTIPLEX."
  (let ((number (pb:watch-response-watch-id response))
        (watches (multiplex-watches multiplex)))
    (flet ((watch-of (number)
             (let ((watch (and number (gethash number watches))))
               (and watch (list watch)))))
      (cond ((pb:watch-response-created response) (watch-of (begun-watch multiplex number)))
            ((minusp number)            ; progress, of all that have begun
             (loop for watch being the hash-values of watches using (hash-key own)
                   unless (assoc own (fifo-items (multiplex-opening multiplex)))
                     collect watch))
            (t (watch-of number))))))

(defun deliver (multiplex call response)
  "Handle RESPONSE, received on CALL, a stream of MULTIPLEX."
  (let ((octets (response-octets response)))
    (flet ((queue ()
             (when (eq call (multiplex-call multiplex))
               (loop for watch in (addressees multiplex response)
                     do (cond ((< (watch-waiting-octets watch) +most-waiting-octets+)
                               (queue-response watch response octets))
                              (t (queue-response watch :outrun 0)
                                 (forget-watch multiplex watch)))
                     collect watch))))
      (tell-watches multiplex #'queue))))

(defun take-stream (multiplex)
  "Forget the stream of MULTIPLEX, which is over, and return the watches that it had. The caller
must hold the lock."
  (setf (multiplex-call multiplex) nil)
  (clear-fifo (multiplex-opening multiplex))
  (loop for watch being the hash-values of (multiplex-watches multiplex)
        collect watch
        finally (clrhash (multiplex-watches multiplex))))

(defun break-stream (multiplex call condition)
  "Notify the watches of CALL, a stream of MULTIPLEX, that it has ended with CONDITION."
  (flet ((queue ()
           (when (eq call (multiplex-call multiplex))
             (loop for watch in (take-stream multiplex)
                   do (queue-response watch condition 0)
                   collect watch))))
    (tell-watches multiplex #'queue)))

(defun note-watches-end (multiplex call)
  "Handle the end of CALL, a stream of MULTIPLEX."
  (break-stream multiplex call
                (if (eq :ok (rpc:call-status call))
                    (make-condition 'unavailable :text "the stream of the watches has ended")
                    (etcd-condition (rpc:call-condition call)))))

;;; Joining the stream, and leaving it

(defun open-stream (multiplex etcd token)
  "Open a stream to ETCD for MULTIPLEX, with TOKEN, and return it. The caller sends on it."
  (let ((call (watches:watch (etcd-channel etcd) :open
                             :wait-for-ready t
                             :metadata (append (token-metadata token) *require-leader*))))
    (note etcd #'meter-streams)
    (with-multiplex (multiplex)
      (setf (multiplex-call multiplex) call
            (multiplex-token multiplex) token))
    (rpc:on-message call (lambda (response) (deliver multiplex call response)))
    (rpc:on-end call (lambda () (note-watches-end multiplex call)))
    call))

(defun stream-with (multiplex etcd token)
  "The stream of MULTIPLEX. A new stream is opened if MULTIPLEX has no stream, or if its stream was
opened with another TOKEN than the valid one; then its watches move to the new stream. The caller
must hold the lock of sending."
  (let ((call (multiplex-call multiplex)))
    (cond ((and call (eq token (multiplex-token multiplex))) call)
          (t (when call
               (break-stream multiplex call
                             (make-condition 'unavailable :text "the token is a new one"))
               (rpc:cancel call))
             (open-stream multiplex etcd token)))))

(defun join-stream (watch)
  "Make etcd begin WATCH on the stream of its client. Signal an ETCD-ERROR if the watch cannot be
requested now."
  (let* ((etcd (watch-etcd watch))
         (multiplex (multiplex-of etcd))
         (token (with-cancellation-token ((watch-cancellation-token watch))
                  (current-token etcd (loop:notice-end (etcd-timeout etcd)))))
         (call nil))
    (setf (watch-token watch) token)
    (keep-fragments watch '())
    (unless (sb-thread:with-mutex ((multiplex-send-lock multiplex))
              (setf call (handler-case (with-etcd-errors (stream-with multiplex etcd token))
                           ;; the channel was closed: no stream can be opened any more
                           (misuse (error) (error error))
                           (error (error) (error (stream-error-of error)))))
              (and (enter-stream multiplex watch call)
                   ;; progress requests that come later are sent after the request for this watch
                   (send-request call (creation watch))))
      (when (watch-open-p watch)
        (error (if (member (rpc:call-status call) '(nil :ok))
                   (make-condition 'unavailable
                                   :text "the stream of the watches takes no request")
                   (etcd-condition (rpc:call-condition call))))))
    ;; the watch may have been cancelled before another thread could see that it has joined
    (unless (watch-open-p watch) (leave-stream watch))))

(defun enter-stream (multiplex watch call)
  "Add WATCH to the watches of CALL, the stream of MULTIPLEX. Return false if CALL has ended."
  (with-multiplex (multiplex)
    (when (eq call (multiplex-call multiplex))
      (set-watch watch (lambda ()
                         (let ((number (incf (multiplex-number multiplex))))
                           (setf (watch-number watch) number
                                 (watch-call watch) call
                                 (gethash number (multiplex-watches multiplex)) watch)
                           (enqueue (cons number watch) (multiplex-opening multiplex))))))))

(defun leave-stream (watch)
  "Remove WATCH from its stream, if it has one; the stream ends with its last watch. From any
thread."
  (let ((multiplex (multiplex-of (watch-etcd watch))) (last nil) (number nil) (call nil))
    (sb-sys:without-interrupts
      (with-multiplex (multiplex)
        (when (watch-number watch)
          (forget-watch multiplex watch)
          (sb-thread:with-mutex ((watch-lock watch))
            (setf number (shiftf (watch-number watch) nil)
                  call (shiftf (watch-call watch) nil)
                  (watch-waiting-octets watch) 0)
            (clear-fifo (watch-responses watch))
            (sb-thread:condition-broadcast (watch-waitqueue watch)))
          (when (and (eq call (multiplex-call multiplex))
                     (zerop (hash-table-count (multiplex-watches multiplex))))
            (take-stream multiplex)
            (setf last t))))
      (cond (last (rpc:cancel call))
            ((and call (eq call (multiplex-call multiplex)))
             (sb-thread:with-mutex ((multiplex-send-lock multiplex))
               (send-request call (pb:make-watch-request
                                   :cancel-request (pb:make-watch-cancel-request
                                                    :watch-id number)))))))))

(defun ask-for-progress (watch call end-ns)
  "Ask for the progress of the watches of CALL, the stream of WATCH; send no request if CALL has
ended, or if other threads send on CALL until END-NS."
  (sb-thread:with-mutex ((multiplex-send-lock (multiplex-of (watch-etcd watch)))
                         :timeout (loop:seconds-until end-ns))
    (send-request call (pb:make-watch-request
                        :progress-request (pb:make-watch-progress-request)))))
