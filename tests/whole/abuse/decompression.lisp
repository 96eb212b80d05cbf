;;;; Messages of a few octets that take long once they are decompressed: a peer has its share of
;;;; time for them, and then these wait, and nothing else does.

(in-package #:clgrpc.tests.abuse)

(defun compressed-frame (octets)
  "OCTETS as a message in gzip, with its prefix."
  (let ((encoded (wire::compress-octets (nth-value 1 (encoding:check-compression :gzip)) 9
                                       (concatenate 'octets (make-octets 5) octets)
                                       (+ 5 (length octets)))))
    (subseq-octets (wire:encoded-octets encoded) 0 (wire:encoded-length encoded))))

(defun bomb (count)
  "A note with COUNT parts that have nothing, in gzip: two octets each, which become a few hundred."
  (let ((octets (make-octets (* 2 count))))
    (loop for at from 0 below (length octets) by 2 do (setf (aref octets at) 34))
    (compressed-frame octets)))

(defparameter *gzip* '(("grpc-encoding" "gzip")))

(defun throw-bomb (attacker &key (path "/lab.Bench/Ask") (parts 20000) fields (end t))
  "Send a call with a bomb; return its stream."
  (demand attacker path (bomb parts) :fields (append *gzip* fields) :end end))

(defun have-owe (server seconds)
  "Have each peer that SERVER knows owe so many SECONDS of time at its default rate."
  (dolist (budget (budgets server)) (server::charge-time budget (seconds-ns seconds) 25)))

(defun forgive (server)
  (dolist (budget (budgets server)) (setf (server::decompression-budget-due-ns budget) 0)))

(defun ends-p (form id)
  "True if FORM is the last frame of stream ID."
  (and (member (first form) '(:headers :rst-stream)) (= id (second form))
       (or (eq :rst-stream (first form)) (member :end-stream form))))

(defun served-before-p (attacker id)
  "True if an ordinary call on ATTACKER's connection is answered, and stream ID is not."
  (let* ((ordinary (demand attacker "/lab.Bench/Ask" (note-octets 1)))
         (heard (hear attacker (lambda (form) (ends-p form ordinary)))))
    (and (eq :ok (ending-of (first (last heard))))
         (notany (lambda (form) (ends-p form id)) heard))))

(defun endings (attacker ids)
  "How the streams IDS of ATTACKER end, in the order in which they do."
  (let ((left (copy-list ids)) (endings '()))
    (hear attacker (lambda (form)
                     (let ((id (find-if (lambda (id) (ends-p form id)) left)))
                       (when id
                         (setf left (remove id left))
                         (push (ending-of form) endings))
                       (null left))))
    (nreverse endings)))

(test bombs-have-a-share-of-time
  "Bombs on four connections at once: those beyond a quarter of a second of a processor wait for
longer than their deadlines. Another connection is served meanwhile."
  (with-victim (address :watched nil :options '(:decompression-percent 1))
    (let ((attackers (loop repeat 4 collect (greet (connect address))))
          (endings '()))
      (flet ((throw-bombs (attacker)
               (loop repeat 8
                     collect (throw-bomb attacker :fields '(("grpc-timeout" "2S"))))))
        (unwind-protect
             (with-attacker (decent address)
               (loop repeat 100
                     until (find :ok endings :test-not #'eq)
                     do (let ((ids (mapcar #'throw-bombs attackers)))
                          (is-true (served-p decent))
                          (setf endings (append (mapcan #'endings attackers ids) endings)))))
          (dolist (attacker attackers) (close-socket (attacker-socket attacker)))))
      (is (subsetp endings '(:ok :deadline-exceeded)))
      (is (plusp (count :ok endings)))
      (is (plusp (count :deadline-exceeded endings))))))

(test bombs-of-a-peer-that-owes-wait
  "Wherever handlers run: its other calls are served, as are another's bombs."
  (dolist (execution '(:auto :inline :blocking))
    (with-victim (address :server server :watched nil :options (list :execution execution))
      (with-attacker (attacker address)
        (is-true (served-p attacker))
        (have-owe server 1000)
        (let ((id (throw-bomb attacker)))
          (is-true (served-before-p attacker id) "~A" execution)
          (with-attacker (more address) (is-true (served-before-p more id)))
          (is (eq :ok (verdict attacker
                               (demand attacker "/lab.Bench/Ask"
                                       (compressed-frame (subseq (note-octets 1) 5))
                                       :fields *gzip*))))
          (with-attacker (decent address :from *other*)
            (is (eq :ok (verdict decent (throw-bomb decent)))))
          (is-true (served-before-p attacker id))
          (forgive server)
          (is (eq :ok (verdict attacker id)) "~A" execution))))))

(test bombs-in-streams-wait
  "Whether a handler waits for messages or has a callback."
  (loop for (path . chat) in (list (list "/lab.Bench/Collect")
                                   (cons "/lab.Bench/Chat" #'echo)
                                   (cons "/lab.Bench/Chat" #'echo-reactively))
        do (with-victim (address :server server :watched nil
                                 :handlers (list :ask #'answer :chat (or chat #'echo)
                                                 :collect #'add-up-reactively))
             (with-attacker (attacker address)
               (is-true (served-p attacker))
               (have-owe server 1000)
               (let ((id (throw-bomb attacker :path path :parts 1000)))
                 (is-true (served-before-p attacker id) "~A" path)
                 (forgive server)
                 (is (eq :ok (verdict attacker id)) "~A" path))))))

(test a-debt-outlives-connections
  (with-victim (address :server server :watched nil)
    (with-attacker (attacker address :from *other*)
      (is-true (served-p attacker))
      (have-owe server 1000))
    (eventually (= 1 (connection-count server)))
    ;; two entries are looked at when a connection ends
    (dotimes (i 4)
      (with-attacker (attacker address) (is-true (served-p attacker))))
    (with-attacker (attacker address :from *other*)
      (is-true (served-before-p attacker (throw-bomb attacker)))
      (forgive server))))

(test waits-end-with-their-calls
  "By a deadline, by a reset, and with the connection. Nothing is left."
  (with-victim (address :server server :watched nil :options '(:execution :inline))
    (flet ((rest-p () (wait-until (lambda () (eql 0 (most-running server))))))
      (with-attacker (attacker address)
        (is-true (served-p attacker))
        (have-owe server 1000)
        (is (eq :deadline-exceeded
                (verdict attacker (throw-bomb attacker :fields '(("grpc-timeout" "50m"))))))
        (is-true (rest-p))
        (let ((id (throw-bomb attacker)))
          (is-true (served-before-p attacker id))
          (is (= 1 (most-running server)))
          (throw-frames attacker `(:rst-stream ,id :cancel))
          (is-true (rest-p)))
        (dotimes (i 5) (throw-bomb attacker))
        (is-true (served-p attacker)))
      (is-true (rest-p)))))

(test servers-stop-while-bombs-wait
  (let ((server (start-probe (list :ask #'answer) :reserve-idle-seconds 0.3)))
    (with-attacker (attacker (grpc:server-address server))
      (is-true (served-p attacker))
      (have-owe server 1000)
      (let ((id (throw-bomb attacker)))
        (is-true (served-before-p attacker id))
        (grpc:stop-server server :drain 0.01)
        (let ((end (find-if (lambda (form) (ends-p form id))
                            (hear attacker (lambda (form) (ends-p form id))))))
          (is (eq :unavailable (ending-of end))))))))

(defun json-text (octets)
  "A text in JSON of about so many OCTETS, which gzip makes a tenth as long, about."
  (with-output-to-string (out)
    (let ((random (sb-ext:seed-random-state 1)))
      (loop for i from 0
            while (< (file-position out) octets)
            do (format out "{\"identifier\": ~D, \"name\": \"customer ~D\", \"address\": ~
                            {\"street\": \"Station Road\", \"city\": \"Springfield\"}, ~
                            \"active\": true, \"balance\": \"~D.~D\"},"
                       i (random 1000 random) (random 10000000 random)
                       (random 1000000 random))))))

(test decent-clients-do-not-wait
  "Who sends what compresses well, a megabyte at a time, in each direction."
  (with-probe (channel :server server :channel-options '(:compression :gzip)
                       :options '(:compression :gzip))
      (:ask (handling (note) note))
    (let ((text (json-text 1000000)))
      (is (< 8 (/ (length text) (length (compressed-frame (ascii-octets text)))) 14)
          "~D octets become ~D" (length text) (length (compressed-frame (ascii-octets text))))
      (loop repeat 4
            do (let ((futures (loop repeat 4
                                    collect (grpc:call-async #'lab.bench:ask channel
                                                             (lab:make-note :text text)
                                                             :timeout +patience+))))
                 (dolist (future futures)
                   (is (= (length text) (length (lab:note-text (grpc:await future))))))))
      (dolist (budget (budgets server))
        (is (not (plusp (server::wait-ns budget 25))))))))

(test clients-have-no-budget
  "A client has chosen its server: answers that compress well never wait."
  (with-probe (channel :options '(:compression :gzip))
      (:ask (handling () (note 1 :body 1000000)))
    (multiple-value-bind (reply call) (ask channel (note 1))
      (is (= 1000000 (length (lab:note-body reply))))
      (is-true (grpc:received-compressed-p call))
      (is (null (wire::link-budget (wire::wire-call-link call)))))))
