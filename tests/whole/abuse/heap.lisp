;;;; Peers that make a server keep as much as they can: header lists of calls that do not end,
;;;; requests that are whole and do not end, output that nobody takes, connections that are idle,
;;;; and halves of frames and of header blocks. The server is a process of its own with a small
;;;; heap, and must live and serve a bystander, whether all comes from one address or from many.
;;;; CLGRPC_ENDURANCE=1 (make endurance) has larger heaps and storms as well.

(in-package #:clgrpc.tests.abuse)
(in-suite :clgrpc.abuse.heap)

;;; Octets that cost their sender little

(defun frame (type flags id payload)
  "A frame as octets; PAYLOAD is a sequence of octets."
  (let* ((length (length payload))
         (octets (make-octets (+ 9 length))))
    (setf (u24be octets 0) length
          (aref octets 3) type
          (aref octets 4) flags
          (u32be octets 5) id)
    (replace octets payload :start1 9)))

(defun literal (name value &key (kind 16))
  "A field that is never indexed, or is of another KIND, as it stands in a header block."
  (flet ((text (string) (concatenate 'octets (octets-of (length string)) (ascii-octets string))))
    (concatenate 'octets (octets-of kind) (text name) (text value))))

(defun request-block (path fields &key (method #x83))
  "A header block with PATH and so many FIELDS of an octet each, which no table keeps."
  (apply #'concatenate 'octets (octets-of method #x86) (literal ":path" path :kind 0)
         (literal "content-type" "application/grpc" :kind 0)
         (loop repeat fields collect (literal "a" "b"))))

(defconstant +headers+ 1)
(defconstant +data+ 0)
(defconstant +continuation+ 9)
(defconstant +end-headers+ 4)
(defconstant +end-stream+ 1)

(defparameter *empty-call* "/grpc.testing.TestService/EmptyCall")

;;; What one connection does; false once the server has ended it or takes nothing more

(defun open-requests (attacker block data count)
  "Begin COUNT requests with the header BLOCK and DATA, nil for none, and end none of them."
  (loop repeat (ceiling count 10)
        always (throw-octets
                attacker
                (apply #'concatenate 'octets
                       (loop repeat 10
                             for id = (new-id attacker)
                             collect (frame +headers+ +end-headers+ id block)
                             when data collect (frame +data+ 0 id data)))
                :seconds 0.5)))

(defun hold-headers (attacker size)
  (open-requests attacker (request-block *empty-call* 120) nil (* 4 size)))

(defun hold-plain-headers (attacker size)
  (open-requests attacker (request-block "/" 120 :method #x82) nil (* 4 size)))

(defparameter *many-messages*
  (framed (apply #'concatenate 'octets (loop repeat 8000 collect (octets-of 18 0))))
  "A StreamingOutputCallRequest with many empty messages.")

(defun hold-requests (attacker size)
  (open-requests attacker (request-block "/grpc.testing.TestService/StreamingOutputCall" 0)
                 *many-messages* size))

(defun hold-output (attacker size)
  "Ask for what is not there, and read nothing."
  (let ((block (octets-of #x82 #x86 #x84)))
    (loop repeat size
          always (throw-octets attacker
                               (apply #'concatenate 'octets
                                      (loop repeat 100
                                            collect (frame +headers+ (+ +end-headers+ +end-stream+)
                                                           (new-id attacker) block)))
                               :seconds 0.1))))

(defun hold-tables (attacker size)
  "Have one call with much metadata, and be idle."
  (declare (ignore size))
  (throw-octets attacker
                (concatenate 'octets
                             (frame +headers+ (+ +end-headers+ +end-stream+) (new-id attacker)
                                    (request-block *empty-call* 120))
                             (frame +headers+ (+ +end-headers+ +end-stream+) (new-id attacker)
                                    (apply #'concatenate 'octets (request-block *empty-call* 0)
                                           (loop for i below 100
                                                 collect (literal (format nil "x~D" i) "v"
                                                                  :kind 64)))))))

(defun hold-block (attacker size)
  "Begin a header block, and do not end it."
  (declare (ignore size))
  (throw-octets attacker
                (apply #'concatenate 'octets
                       (frame +headers+ 0 (new-id attacker) (make-octets 15000))
                       (loop repeat 3 collect (frame +continuation+ 0 1 (make-octets 15000))))))

(defun hold-frame (attacker size)
  (declare (ignore size))
  (throw-octets attacker (subseq (frame +data+ 0 1 (make-octets 16384)) 0 16000)))

(defparameter *holders*
  '((hold-headers 20 200) (hold-plain-headers 20 200) (hold-requests 4 500) (hold-output 150 40)
    (hold-tables 500 1) (hold-block 400 1) (hold-frame 400 1))
  "What storms are made of, each with how many connections and how much of each.")

;;; Storms

(defun source-address (i many)
  "The address of connection I, one of a hundred if there are MANY."
  (and many (vector 127 0 1 (+ 1 (mod i 100)))))

(defun collecting-seconds ()
  "For how long this process, that of the attackers, has stood still to collect its own garbage."
  (/ sb-ext:*gc-run-time* internal-time-units-per-second))

(defun bystander-latencies (address over)
  "Make calls until the signal OVER; return how long each has taken in seconds, less what
collections here have. One that is refused since the heap is full is made again, and has taken as
long as all of its attempts."
  (with-attacker (decent address)
    (flet ((attempt () (verdict decent (demand decent *empty-call* (framed (octets-of))))))
      (loop with ended = nil
            until (or ended (await-signal over :seconds 0.01))
            collect (let ((collecting (collecting-seconds)))
                      (max 0 (- (elapsed-seconds
                                  (loop for verdict = (attempt)
                                        until (eq :ok verdict)
                                        do (unless (eq :resource-exhausted verdict)
                                             (error "The bystander's call: ~S" verdict))
                                        until (setf ended (await-signal over :seconds 0.01))))
                                (- (collecting-seconds) collecting))))))))

(defun call-beside-bystander (function address)
  "Call FUNCTION while a bystander is served; return the longest time that it has waited."
  (let* ((over (make-signal))
         (thread (in-thread (caught-or (lambda () (bystander-latencies address over))))))
    (unwind-protect (funcall function)
      (signal-it over))
    (let ((outcome (sb-thread:join-thread thread)))
      (if (listp outcome)
          (reduce #'max outcome :initial-value 0)
          (progn (fail "~A" outcome) 0)))))

(defun caught-or (function)
  "The value of FUNCTION, or the error that it signals as text."
  (handler-case (funcall function)
    (error (error) (princ-to-string error))))

(defun hold-all (address holder connections size many)
  "Have CONNECTIONS do what HOLDER does, from one address or from MANY, and keep them open."
  (let ((attackers '()))
    (unwind-protect
         (dotimes (i connections)
           (let ((attacker (connect address :from (source-address i many))))
             (push attacker attackers)
             (greet attacker)
             (funcall holder attacker size)))
      (dolist (attacker attackers) (close-socket (attacker-socket attacker))))))

(defun check-holders (megabytes times)
  (with-small-server (address megabytes)
    (loop for (holder connections size) in *holders*
          do (dolist (many '(nil t))
               (let ((seconds (call-beside-bystander
                               (lambda ()
                                 (hold-all address holder (* times connections) size many))
                               address)))
                 (format t "~&; ~(~A~) from ~:[one address~;many~], ~D MB: a bystander has waited ~
                            ~,3F s at most~%" holder many megabytes seconds)))
             (eventually (answered-p address 10)))))

(test what-peers-hold-ends-no-process
  (check-holders 512 1)
  (when (support:at-length nil t)
    (check-holders 2048 4)
    (check-holders 8192 4)))
