;;;; TLS connections in memory: a test carries the octets of both ends, so it determines when they
;;;; arrive, how many the kernel takes, and when it fails. All ends of one loop share its area; it
;;;; does not run, so that the test's thread may do what is done on it.

(in-package #:clgrpc.tests.loop)

(defstruct (end (:copier nil) (:predicate nil))
  "One end of a connection: BYTE-CHANNEL is its own, with TLS."
  (byte-channel nil)
  (arrived (make-buffer) :read-only t)  ; what the peer has sent and the session has not read
  (over nil)                            ; the peer sends no more: true, or a negated errno
  (sent (make-buffer) :read-only t)     ; what the session has sent and the peer not got
  (room most-positive-fixnum)           ; how many octets more the kernel takes
  (fault nil)                           ; the next write answers this errno, or signals this
  (refusals '())                        ; what the next writes answer, one each
  (got (make-buffer) :read-only t)      ; what has been decrypted
  (last 0))                             ; the result of the last read

(defun take-octets (buffer octets start end)
  "Move octets from BUFFER to OCTETS from START to END; return how many."
  (let ((count (min (buffer-fill buffer) (- end start))))
    (replace octets (buffer-octets buffer) :start1 start :end1 (+ start count)
                                           :start2 (buffer-start buffer))
    (incf (buffer-start buffer) count)
    (when (zerop (buffer-fill buffer)) (clear-buffer buffer))
    count))

(defun read-memory (byte-channel octets start end)
  (let ((self (byte-channel-state byte-channel)))
    (cond ((plusp (buffer-fill (end-arrived self)))
           (take-octets (end-arrived self) octets start end))
          ((integerp (end-over self)) (end-over self))
          ((end-over self) 0)
          (t clgrpc.loop:+wants-read+))))

(defun write-memory (byte-channel octets start end)
  (let* ((self (byte-channel-state byte-channel))
         (count (min (end-room self) (- end start)))
         (fault (shiftf (end-fault self) nil)))
    (cond ((end-refusals self) (pop (end-refusals self)))
          ((integerp fault) fault)
          (fault (error fault))
          ((zerop count) (if (= start end) 0 clgrpc.loop:+wants-write+))
          (t (append-octets (end-sent self) octets :start start :end (+ start count))
             (decf (end-room self) count)
             count))))

(sb-ext:define-load-time-global **memory**
  (make-byte-channel-kind :name "memory" :read #'read-memory :write #'write-memory
                          :shutdown (constantly nil)
                          :close (constantly nil)))

(defun open-end (loop credentials role &key (name "localhost"))
  "Return an end of ROLE on LOOP that has not shaken hands."
  (let ((end (make-end)))
    (setf (end-byte-channel end)
          (make-tls-byte-channel loop (make-byte-channel **memory** 1000000 "memory" end)
                                 credentials
                                 role :server-name name))
    end))

(defun end-tls (end)
  (byte-channel-state (end-byte-channel end)))

(defun close-end (end)
  (clgrpc.loop:close-byte-channel (end-byte-channel end)))

(defun carry (from to &optional (count most-positive-fixnum))
  "Deliver octets that FROM has sent, COUNT at most, to TO."
  (let* ((sent (end-sent from))
         (count (min count (buffer-fill sent))))
    (append-octets (end-arrived to) (buffer-octets sent) :start (buffer-start sent)
                                                         :end (+ (buffer-start sent) count))
    (incf (buffer-start sent) count)
    (when (zerop (buffer-fill sent)) (clear-buffer sent))
    count))

(defvar *end-octets* (make-octets 163840) "Where ends read to, as a loop's input area.")

(defun read-end (end)
  "Read all octets of END, onto GOT, each time as in a separate turn; return the value of the last
read."
  (loop for result = (byte-channel-read (end-byte-channel end) *end-octets* 0 (length *end-octets*))
        when (plusp result)
          do (append-octets (end-got end) *end-octets* :end result)
        do (incf (clgrpc.loop:event-loop-turns (clgrpc.loop::tls-loop (end-tls end))))
        while (or (plusp result)
                  (and (= result clgrpc.loop:+wants-read+)
                       (byte-channel-more (end-byte-channel end))))
        finally (return (setf (end-last end) result))))

(defun write-end (end octets)
  "Let END write OCTETS; return the value of the write."
  (byte-channel-write (end-byte-channel end) octets 0 (length octets)))

(defun established-p (end)
  (clgrpc.loop::tls-established-p (end-tls end)))

(defun shake-ends (client server)
  "Let CLIENT and SERVER shake hands as far as they get, and each send the other an octet, with
which tickets arrive; return true if both have done this."
  (write-end client (octets-of))
  (loop repeat 6
        do (carry client server)
           (read-end server)
           (carry server client)
           (read-end client))
  (and (established-p client) (established-p server)
       (exchanged-p server client (octets-of 1))
       (exchanged-p client server (octets-of 2))))

(defun exchanged-p (from to octets)
  "True if TO gets exactly the OCTETS that FROM writes."
  (clear-buffer (end-got to))
  (and (eql (length octets) (write-end from octets))
       (plusp (carry from to))
       (progn (read-end to)
              (not (mismatch (the octets octets) (the octets (buffer-octets (end-got to)))
                             :start2 (buffer-start (end-got to))
                             :end2 (buffer-end (end-got to)))))))

(defun area-clean-p (loop)
  (os:area-empty-p (clgrpc.loop::loop-area loop)))

(defun call-with-still-loops (count function)
  (let ((before (os:tls-session-count))
        (loops (loop repeat count collect (make-event-loop))))
    (multiple-value-prog1 (unwind-protect (apply function loops)
                            (mapc #'stop-event-loop loops))
      (is (= before (os:tls-session-count)) "sessions are left"))))

(defmacro with-still-loops ((&rest names) &body body)
  "Evaluate BODY with NAMES bound to loops that do not run; then close the ends it has opened."
  `(call-with-still-loops ,(length names) (lambda ,names ,@body)))

(defmacro with-ends ((&rest rows) &body body)
  "Evaluate BODY with ends by ROWS, (name loop credentials role . arguments of OPEN-END), which are
closed afterwards."
  (if (null rows)
      `(progn ,@body)
      (destructuring-bind ((name . arguments) . others) rows
        `(let ((,name (open-end ,@arguments)))
           (unwind-protect (with-ends ,others ,@body)
             (close-end ,name))))))

;;; Connections without TLS

(defun memory-connection (loop descriptor input)
  "Two values: a connection on LOOP, and its peer, an END; INPUT takes the received octets."
  (let ((end (make-end)))
    (values (make-connection loop (make-byte-channel **memory** descriptor "memory" end)
                             (make-handler :input input))
            end)))

(defun takes-all (connection octets start end)
  "A function INPUT that consumes all octets."
  (declare (ignore connection octets start))
  end)
