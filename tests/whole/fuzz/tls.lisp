;;;; TLS as a byte channel, at both ends. Three sessions share a loop's area: whatever the peer of
;;;; one says, and whatever the kernel does to it, the others go on to exchange their octets
;;;; exactly. An input is one of these, by its kind:
;;;;
;;;;   text      what the peer says to a session that begins: a ClientHello, or a server's answer
;;;;   handshake changes to the flights of a peer that shakes hands
;;;;   record    what an established peer does, and the kernel, in steps of four octets: an
;;;;             operation and its arguments A, B and C; a session that takes no harm serves again
;;;;
;;;; What OpenSSL draws by itself, keys and the like, is another at each run; all else depends on
;;;; the seed. An input is refused if the session fails or is over.

(in-package #:clgrpc.tests.fuzz)

(defstruct (trio (:copier nil))
  "The sessions of one ROLE. OURS is the loop under test, THEIRS that of the peers; PAIRS are the
bystanders and their peers; SUBJECT and PEER are established, or NIL."
  (role :server)
  (ours nil)
  (theirs nil)
  (pairs '() :type list)
  (subject nil)
  (peer nil)
  (whole t)                             ; nothing but what the peer meant has come to the subject
  (count 0 :type fixnum))

(define-condition session-refused (error) ())

(defun still-loop ()
  "A loop that does not run and has no descriptor."
  (loop:make-event-loop
   :poller (loop:make-poller :add (constantly 0) :remove (constantly 0) :wait (constantly 0)
                             :wake #'identity :close #'identity)))

(defvar *tls-credentials* nil "Of servers and of clients; made when needed.")

(defun fuzz-credentials (role)
  (flet ((file (name) (support:certificate-file name)))
    (unless *tls-credentials*
      (setf *tls-credentials*
            (list (loop:tls-credentials
                   :certificate (file "server.pem") :key (file "server.key") :roots (file "ca.pem")
                   :client-certificates :request :check-seconds nil
                   :others (list (loop:tls-credentials
                                  :certificate (file "elsewhere.pem") :key (file "elsewhere.key")
                                  :roots (file "stranger.pem") :client-certificates :request
                                  :check-seconds nil)))
                  (loop:tls-credentials :roots (file "ca.pem") :check-seconds nil))))
    (ecase role
      (:server (first *tls-credentials*))
      (:client (second *tls-credentials*)))))

(defun other-role (role)
  (if (eq role :server) :client :server))

(defun open-two (trio &key (name "localhost"))
  "Return an end under test and its peer, which have not shaken hands."
  (let ((other (other-role (trio-role trio))))
    (values (open-subject trio name)
            (ends:open-end (trio-theirs trio) (fuzz-credentials other) other :name name))))

(defun open-subject (trio name)
  (let ((role (trio-role trio)))
    (ends:open-end (trio-ours trio) (fuzz-credentials role) role :name name)))

(defun greet (trio subject peer)
  (if (eq :client (trio-role trio))
      (ends:shake-ends subject peer)
      (ends:shake-ends peer subject)))

(defun make-pair (trio)
  (multiple-value-bind (subject peer) (open-two trio)
    (unless (greet trio subject peer) (found "a handshake that nobody disturbs fails"))
    (list subject peer)))

(defun new-trio (role)
  (let ((trio (make-trio :role role :ours (still-loop) :theirs (still-loop))))
    (setf (trio-pairs trio) (loop repeat 2 collect (make-pair trio)))
    trio))

(defvar *trios* '() "The trios there are, by role.")

(defun find-trio (role)
  (or (getf *trios* role)
      (setf (getf *trios* role) (new-trio role))))

(defparameter *exchanged* (random-octets 3000) "What bystanders send each other, in part.")

(defun check-bystanders (trio)
  "The others of TRIO exchange what they mean, and the area is empty."
  (flet ((exchanged-p (from to)
           (let ((most (if (chance-p 50) 3000 100)))
             (ends:exchanged-p from to (subseq *exchanged* 0 (1+ (mod (incf (trio-count trio) 7)
                                                                      most)))))))
    (unless (and (ends:area-clean-p (trio-ours trio))
                 (loop for (subject peer) in (trio-pairs trio)
                       always (and (exchanged-p subject peer) (exchanged-p peer subject))))
      (setf *trios* '())
      (found "another session of the loop is harmed"))))

(defmacro judging-session ((trio subject) &body body)
  "Do BODY, see that nobody else is harmed, and signal SESSION-REFUSED if SUBJECT is over."
  `(progn ,@body
          (check-bystanders ,trio)
          (unless (and ,subject (ends:established-p ,subject)) (error 'session-refused))))

;;; What the peer says to a session that begins

(defun arrive (end octets)
  (append-octets (ends:end-arrived end) octets)
  (ends:read-end end))

(defun run-first (trio octets)
  (let ((subject (open-subject trio "localhost")))
    (unwind-protect
         (progn
           (when (eq :client (trio-role trio)) (ends:write-end subject (octets-of)))
           (arrive subject octets))
      (ends:close-end subject))
    (check-bystanders trio)
    (when (loop:byte-channel-failure (ends:end-byte-channel subject)) (error 'session-refused))))

(defun end-output (end)
  (let ((sent (ends:end-sent end)))
    (subseq (buffer-octets sent) (buffer-start sent) (buffer-end sent))))

(defun first-text (trio name version)
  "What a peer says first, speaking VERSION of TLS at most, to a session that is called NAME."
  (let ((client (fuzz-credentials :client)))
    (ends:limit-version client version)
    (unwind-protect
         (multiple-value-bind (subject peer) (open-two trio :name name)
           (unwind-protect
                (let ((asking (if (eq :client (trio-role trio)) subject peer)))
                  (ends:write-end asking (octets-of))
                  (cond ((eq asking peer) (end-output peer))
                        (t (ends:carry subject peer)
                           (ends:read-end peer)
                           (end-output peer))))
             (ends:close-end subject)
             (ends:close-end peer)))
      (ends:limit-version client 13))))

(defun text-samples-of (role)
  (let ((trio (find-trio role)))
    (loop for version in '(13 12)
          append (loop for name in '("localhost" "elsewhere.example" "127.0.0.1")
                       collect (make-sample :kind (list :text version name)
                                            :octets (first-text trio name version))))))

;;; Changing a text. The lengths around what is changed are made to fit more often than not, since
;;; otherwise nothing behind the first of them is ever looked at.

(defun set-length (octets at count)
  "OCTETS with the number of those behind it in the COUNT octets at AT, if they are there."
  (let ((rest (- (length octets) at count)))
    (when (>= rest 0)
      (dotimes (i count)
        (setf (aref octets (+ at i)) (ldb (byte 8 (* 8 (- count i 1))) rest))))
    octets))

(defun hello-extensions (octets)
  "Where the length of the extensions of the ClientHello or ServerHello in OCTETS stands, or NIL."
  (let ((at 43))                        ; record, message, version, random
    (flet ((pass-over (size)
             ;; what has its length in SIZE octets before it
             (when (<= (+ at size) (length octets))
               (incf at (+ size (reduce (lambda (sum octet) (+ (* 256 sum) octet)) octets
                                        :start at :end (+ at size)))))))
      (pass-over 1)                          ; session
      (cond ((and (> (length octets) 5) (= 1 (aref octets 5)))
             (pass-over 2)                   ; ciphers
             (pass-over 1))                  ; compression
            (t (incf at 3)))
      (and (< (+ at 2) (length octets)) at))))

(defun change-extensions (octets other)
  (let ((at (hello-extensions octets)))
    (if (null at)
        octets
        (let ((list (loop with place = (+ at 2)
                          while (<= (+ place 4) (length octets))
                          collect (let ((end (min (length octets)
                                                  (+ place 4 (u16be octets (+ place 2))))))
                                    (prog1 (subseq octets place end) (setf place end))))))
          (when list
            (let ((i (below (length list))))
              (one-of
                (setf (nth i list) (octets-of))
                (push (nth i list) list)
                (setf (nth i list) (fit-extension (mutate-octets (nth i list) (vector other))))
                (setf (nth i list) (fit-extension (mutate-octets (nth i list) (vector other))))
                (rotatef (nth i list) (nth (below (length list)) list))
                (setf (nth i list) (server-name-extension)))))
          (apply #'concatenate 'octets (subseq octets 0 (+ at 2)) list)))))

(defun fit-extension (octets)
  (if (chance-p 8) octets (set-length octets 2 2)))

(defun server-name-extension ()
  "An extension that asks for a name of any octets."
  (let* ((name (random-octets (if (chance-p 8) (below 400) (below 12))))
         (octets (concatenate 'octets (octets-of 0 0 0 0 0 0 0 0 0) name)))
    (set-length (set-length (set-length octets 7 2) 4 2) 2 2)))

(defun fit-hello (octets)
  "OCTETS with the lengths of the record, of its message and of the extensions as they are."
  (let ((at (hello-extensions octets)))
    (when at (set-length octets at 2))
    (set-length (set-length octets 6 3) 3 2)))

(defun in-records (octets)
  "The content of the record OCTETS as several records."
  (let ((content (subseq octets (min 5 (length octets)))) (size (1+ (below 200))))
    (apply #'concatenate 'octets
           (loop for start from 0 below (length content) by size
                 for end = (min (length content) (+ start size))
                 collect (set-length (concatenate 'octets (octets-of 22 3 1 0 0)
                                                  (subseq content start end))
                                     3 2)))))

(defun mutate-text-of-tls (sample siblings)
  (let ((octets (copy-seq (sample-octets sample)))
        (other (sample-octets (pick siblings))))
    (loop repeat (times-to-mutate)
          do (setf octets (if (chance-p 3)
                              (mutate-octets octets (vector other))
                              (change-extensions octets other))))
    (unless (chance-p 4) (setf octets (fit-hello (copy-seq octets))))
    (when (chance-p 8) (setf octets (in-records octets)))
    (when (chance-p 3)
      ;; something behind it
      (setf octets (concatenate 'octets octets
                                (one-of (random-octets (below 200)) (octets-of 21 3 3 0 2 2 40)
                                  (octets-of 20 3 3 0 1 1) other))))
    octets))

;;; Handshakes and records: an input is steps, which are made at random

(defun steps (octets function)
  "Call FUNCTION with each step of OCTETS, four numbers."
  (loop for at from 0 below (- (length octets) 3) by 4
        do (funcall function (aref octets at) (aref octets (+ at 1)) (aref octets (+ at 2))
                    (aref octets (+ at 3)))))

(defun spoil (end operation a b)
  (let* ((buffer (ends:end-arrived end))
         (fill (buffer-fill buffer))
         (octets (buffer-octets buffer))
         (at (+ (buffer-start buffer) (if (plusp fill) (mod (+ (* 256 a) b) fill) 0))))
    (when (plusp fill)
      (ecase (mod operation 4)
        (0 (setf (aref octets at) (logxor (aref octets at) (ash 1 (mod b 8)))))
        (1 (setf (aref octets at) b))
        (2 (setf (buffer-end buffer) (1+ at)))
        (3 (append-octets buffer (subseq octets at (min (buffer-end buffer) (+ at 40)))))))))

(defun run-handshake (trio octets)
  "Shake hands; a step spoils what arrives in the flight A, if that is its number."
  (multiple-value-bind (subject peer) (open-two trio)
    (unwind-protect
         (judging-session (trio subject)
           (ends:write-end (if (eq :client (trio-role trio)) subject peer) (octets-of))
           (dotimes (flight 4)
             (ends:carry peer subject)
             (steps octets (lambda (operation a b c)
                             (when (= flight (mod a 4)) (spoil subject operation b c))))
             (ends:read-end subject)
             (ends:carry subject peer)
             (ends:read-end peer)))
      (ends:close-end subject)
      (ends:close-end peer))))

(defun subject-of (trio)
  "The established session of TRIO to try things with, and its peer."
  (unless (trio-subject trio)
    (destructuring-bind (subject peer) (make-pair trio)
      (setf (trio-subject trio) subject
            (trio-peer trio) peer
            (trio-whole trio) t)))
  (values (trio-subject trio) (trio-peer trio)))

(defun end-subject (trio)
  (let ((subject (shiftf (trio-subject trio) nil)) (peer (shiftf (trio-peer trio) nil)))
    (ends:close-end subject)
    (ends:close-end peer)))

(defun write-signalling (end octets)
  "Have END write, and take the condition that its byte channel may have been told to signal."
  (handler-case (ends:write-end end octets)
    (simple-error () nil)))

(defun run-step (trio subject peer operation a b c)
  (let* ((data (subseq *exchanged* 0 (1+ (mod (+ a (* 256 b)) (length *exchanged*))))))
    (flet ((from-peer () (ends:write-end peer data) (ends:carry peer subject))
           (read-it () (ends:read-end subject))
           (broken () (setf (trio-whole trio) nil)))
      (case (mod operation 20)
        ((0 1 2) (when (trio-whole trio)
                   (unless (ends:exchanged-p peer subject data)
                     (found "what the peer has sent does not come"))))
        ((3 4) (setf (ends:end-room subject) most-positive-fixnum)
         (write-signalling subject data)
         (ends:carry subject peer)
         (ends:read-end peer))
        (5 (broken) (setf (ends:end-room subject) (* 4 c)) (write-signalling subject data))
        (6 (ends:write-end peer data)
         (loop while (plusp (ends:carry peer subject (1+ c))) do (read-it)))
        (7 (from-peer) (broken) (spoil subject c a b) (read-it))
        (8 (broken)
         (arrive subject (concatenate 'octets (octets-of (+ 18 (mod c 8)) 3 3 b a) data)))
        (9 (broken)
         (arrive subject (set-length (concatenate 'octets (octets-of (+ 20 (mod c 5)) 3 3 0 0) data)
                                  3 2)))
        (10 (when (loop::tls-established-p (ends:end-tls peer))
              (clgrpc.os:update-keys (loop::tls-ssl (ends:end-tls peer))))
         (from-peer) (read-it))
        (11 (broken) (loop:shut-byte-channel-down (ends:end-byte-channel peer))
         (ends:carry peer subject)
         (when (evenp c) (append-octets (ends:end-arrived subject) data))
         (read-it))
        (12 (broken) (loop:shut-byte-channel-down (ends:end-byte-channel subject)) (from-peer)
            (read-it))
        (13 (broken) (setf (ends:end-over subject) (if (evenp c) t -104)) (read-it))
        (14 (broken)
         (setf (ends:end-fault subject) (case (mod c 3) (0 -32) (1 -104)
                                          (t (make-condition 'simple-error))))
         (write-signalling subject data))
        (15 (broken) (from-peer) (arrive subject data))
        (16 (broken) (ends:write-end peer data)
         (let ((again (end-output peer)))
           (ends:carry peer subject)
           (arrive subject again)))
        (t (when (trio-whole trio) (ends:exchanged-p subject peer data)))))))

(defun run-records (trio octets)
  (multiple-value-bind (subject peer) (subject-of trio)
    (unwind-protect
         (judging-session (trio subject)
           (steps octets (lambda (operation a b c)
                           (run-step trio subject peer operation a b c))))
      (unless (and (trio-whole trio) (ends:established-p subject) (ends:established-p peer))
        (end-subject trio)
        (check-bystanders trio)))))

(defun mutate-steps (sample siblings)
  "Steps of any kind, in most inputs one that breaks nothing."
  (declare (ignore sample siblings))
  (let ((octets (random-octets (* 4 (if (chance-p 4) (1+ (below 6)) 1)))))
    (unless (chance-p 12) (setf (aref octets 0) (pick #(0 3 6 10 17))))
    octets))

(defun mutate-tls (sample siblings)
  (if (consp (sample-kind sample))
      (mutate-text-of-tls sample siblings)
      (mutate-steps sample siblings)))

(defun tls-samples (role)
  (append (text-samples-of role)
          ;; as many groups as it is to be tried often
          (loop for kind in '(:record :record-again :record-still :record-yet :handshake)
                collect (make-sample :kind kind))))

(defun run-tls (role kind octets)
  (let ((trio (find-trio role)) (*log-function* nil))
    (cond ((consp kind) (run-first trio octets))
          ((eq kind :handshake) (run-handshake trio octets))
          (t (run-records trio octets)))))

(define-target "tls-server"
  :samples (lambda () (tls-samples :server)) :mutate #'mutate-tls
  :run (lambda (kind octets) (run-tls :server kind octets))
  :conditions (session-refused) :seconds 1/20)

(define-target "tls-client"
  :samples (lambda () (tls-samples :client)) :mutate #'mutate-tls
  :run (lambda (kind octets) (run-tls :client kind octets))
  :conditions (session-refused) :seconds 1/20)
