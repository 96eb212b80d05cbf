;;;; More than a server should have to bear: floods, peers that never read, half messages on many
;;;; streams, resets and disappearances at every moment. The server's limits must hold, the right
;;;; code go out, and memory, threads and connections come back.

(in-package #:clgrpc.tests.abuse)

;;; Floods

(defun repeated (octets count)
  (let ((all (make-octets (* count (length octets)))))
    (dotimes (i count all)
      (replace all octets :start1 (* i (length octets))))))

(defun flood (attacker octets count)
  "Throw OCTETS COUNT times, hearing nothing, unless the server takes no more."
  (let ((piece (repeated octets 1000)))
    (loop repeat (ceiling count 1000)
          while (throw-octets attacker piece :seconds 0.5))))

(defun calmed-p (attacker)
  "True if the server has ended the connection for its flood. A peer that reads too late for the
server's patience with closing connections finds no GOAWAY any more."
  (member (hear-to-the-end attacker) '(:enhance-your-calm :closed)))

(test floods
  "Frames that cost an answer each, to a peer that does not read, are too many at some point."
  (with-victim (address)
    (dolist (form '((:ping 7) (:settings) (:settings (:initial-window-size 0))))
      (with-attacker (attacker address)
        (flood attacker (opening-octets form) 1000000)
        (is-true (calmed-p attacker) "~S" form)))
    (with-attacker (attacker address)
      ;; each is malformed and is answered with RST_STREAM
      (loop repeat 1000
            while (throw-octets attacker
                                (apply #'opening-octets
                                       (loop repeat 500
                                             collect (list :headers (new-id attacker) :none)))
                                :seconds 0.5))
      (is-true (calmed-p attacker)))))

(defun flood-listening (attacker octets count)
  "Throw OCTETS COUNT times and hear what is said; return the code of the GOAWAY, or nil."
  (let ((piece (repeated octets 100)) (goaway nil))
    (loop repeat (ceiling count 100)
          until goaway
          while (throw-octets attacker piece :seconds 0.5)
          do (setf goaway (heard-goaway attacker 0)))
    (or goaway (heard-goaway attacker +patience+))))

(defun heard-goaway (attacker seconds)
  (third (find :goaway (hear attacker (lambda (form) (eq :goaway (first form))) :seconds seconds)
               :key #'first)))

(test floods-of-listeners
  "Frames that carry nothing, from a peer that reads all answers."
  (with-victim (address)
    (dolist (form `((:ping 7) (:settings) (:settings (:initial-window-size 0)) (:priority 3 1)
                    (:window-update 0 1) (:window-update 1 1) (:data 1 "") (:data 1 "" (:pad 255))
                    (:frame 99 0 0 ,(octets-of 1))))
      (with-attacker (attacker address :polite nil)
        (throw-octets attacker *preface*)
        (throw-frames attacker '(:settings) '(:settings-ack)
                      (list :headers (new-id attacker) (request-fields "/lab.Bench/Collect")))
        (is (eq :enhance-your-calm (flood-listening attacker (opening-octets form) 100000))
            "~S" form)))))

(defun provocations (id)
  "Lists of frames that make a server reset the call of stream ID, which has just been made."
  `(((:window-update ,id 0))
    ((:window-update ,id #x7FFFFFFF))
    ((:priority ,id ,id))
    ((:frame 2 0 ,id ,(octets-of 1)))
    ((:data ,id ,(note-octets 3) :end-stream) (:data ,id "x"))
    ((:headers ,id ,(request-fields "/lab.Bench/Ask")))))

(test provoked-resets
  "Calls that the server is made to reset, in every way there is, cost a client what its own resets
would (RFC 9113 10.5; CVE-2025-8671): so many are borne, and no more."
  (with-victim (address :options '(:max-reset-burst 1000 :max-resets-per-second 1))
    (dotimes (way (length (provocations 1)))
      (with-attacker (attacker address)
        (let ((code nil))
          (loop repeat 200
                until code
                while (throw-octets
                       attacker
                       (apply #'concatenate 'octets
                              (loop repeat 50
                                    for id = (new-id attacker)
                                    for path = (elt *paths* (mod (ash id -1) 4))
                                    collect (frames-octets
                                             (attacker-speech attacker)
                                             (cons `(:headers ,id ,(request-fields path))
                                                   (elt (provocations id) way)))))
                       :seconds 0.5)
                do (setf code (heard-goaway attacker 0)))
          (is (eq :enhance-your-calm (or code (heard-goaway attacker +patience+)))
              "~S" (elt (provocations 1) way)))))))

(test endless-header-blocks
  (with-victim (address)
    (loop for (count size) in '((20000 0) (20000 1) (10 16384))
          do (with-attacker (attacker address)
               (throw-frames attacker `(:headers 1 ,(request-fields "/x") :open))
               (flood attacker (opening-octets `(:continuation 1 ,(make-octets size) :open)) count)
               (is (eq :enhance-your-calm (hear-to-the-end attacker)))))))

(test header-bombs
  "An entry of the dynamic table named ten thousand times is one long header list."
  (with-victim (address)
    (with-attacker (attacker address)
      (let ((large (list "x" (make-string 3000 :initial-element #\y))))
        (throw-frames attacker `(:headers ,(new-id attacker)
                                          ,(request-fields "/x" :fields (list large))))
        (dotimes (i 100)
          (let ((id (new-id attacker)))
            (throw-frames attacker `(:headers ,id ,(make-array 10000 :element-type 'octet
                                                                     :initial-element #xBE)))
            (is (equal '(:reset :enhance-your-calm) (verdict attacker id)))))
        (is-true (served-p attacker))))))

(test empty-frames
  "Frames of no content by the hundred cost little and break nothing; by the thousand they end the
connection of who sends them."
  (with-victim (address)
    (dolist (form '((:data 1 "") (:data 1 "" (:pad 255)) (:priority 1 3)))
      (with-attacker (attacker address)
        (let ((id (new-id attacker)))
          (throw-frames attacker (list :headers id (request-fields "/lab.Bench/Ask")))
          (is-true (throw-octets attacker (repeated (opening-octets form) 900)))
          (throw-frames attacker `(:data ,id ,(note-octets 1) :end-stream))
          (is (eq :ok (verdict attacker id)))))
      (with-attacker (attacker address)
        (throw-frames attacker (list :headers (new-id attacker) (request-fields "/lab.Bench/Ask")))
        (flood attacker (opening-octets form) 100000)
        (is-true (calmed-p attacker))))))

(defun reset-rapidly (attacker count)
  "Begin and reset COUNT calls, of all kinds by turns; false if the server takes no more."
  (loop repeat count
        for id = (new-id attacker)
        for path = (elt *paths* (mod (ash id -1) 4))
        always (throw-frames attacker `(:headers ,id ,(request-fields path))
                             `(:data ,id ,(note-octets 3) :end-stream)
                             `(:rst-stream ,id :cancel))))

(test rapid-reset
  "Requests that are reset at once, on every kind of handler: so many are borne, and no more."
  (dolist (options '(() (:execution :inline)))
    (with-victim (address :options options
                          :handlers (list :ask #'answer :watch #'count-down
                                          :collect #'add-up-reactively :chat #'echo-reactively))
      (with-attacker (attacker address)
        (reset-rapidly attacker 3000)
        (is-true (served-p attacker))
        (reset-rapidly attacker 20000)
        (is-true (calmed-p attacker))))))

(test too-many-streams
  (with-victim (address :options '(:max-concurrent-streams 10))
    (with-attacker (attacker address)
      (let ((ids (loop repeat 10
                       collect (demand attacker "/lab.Bench/Collect" (note-octets 1) :end nil))))
        (is (equal '(:reset :refused-stream)
                   (verdict attacker (demand attacker "/lab.Bench/Ask" (note-octets 1)))))
        (throw-frames attacker `(:rst-stream ,(first ids) :cancel))
        (is-true (served-p attacker))))))

;;; Memory

(defun charged-beside (server)
  "What SERVER's account is charged with beside what its open connections have told it: theirs is
what they keep for speed, which a busy bystander has as well."
  (- (account-sum (server::server-account server))
     (loop for link in (server-links server)
           sum (clgrpc.base::account-told (server::server-link-account link)))))

(defun check-nothing-held (server)
  (is (wait-until (lambda () (zerop (held-octets server)))) "~D octets held" (held-octets server)))

(defparameter *tight*
  '(:max-held-octets 65536 :max-receive-octets 100000 :stream-window-octets 65535)
  "Options by which a connection may hold 200000 octets.")

(test half-messages
  "Messages that lack their last octet, on more streams than a connection has memory for."
  (with-victim (address :server server :options *tight*)
    (dolist (path *paths*)
      (with-attacker (attacker address)
        (let* ((octets (note-octets 1 :body 60000))
               (half (subseq octets 0 (1- (length octets))))
               (ids (loop repeat 4
                          for id = (new-id attacker)
                          do (throw-frames attacker `(:headers ,id ,(request-fields path)))
                             (loop for at from 0 below (length half) by 16384
                                   do (throw-frames attacker
                                                    `(:data ,id ,(subseq half at
                                                                         (min (+ at 16384)
                                                                              (length half))))))
                          collect id)))
          (is (eq :resource-exhausted (verdict attacker (fourth ids))))
          (dolist (id (subseq ids 0 3))
            (throw-frames attacker `(:data ,id ,(subseq octets (length half)) :end-stream))
            (is (eq :ok (verdict attacker id))))
          (check-nothing-held server))))))

(test messages-that-have-just-grown
  "Messages of which an eighth and one octet more have come, so that there is memory for all of
each: that is what counts."
  (with-victim (address :server server :options *tight*)
    (dolist (path *paths*)
      (with-attacker (attacker address)
        (let* ((octets (note-octets 1 :body 60000))
               (eighth (+ 5 (ceiling (- (length octets) 5) 8)))
               (ids (loop repeat 4
                          for id = (new-id attacker)
                          do (throw-frames attacker
                                           `(:headers ,id ,(request-fields path))
                                           `(:data ,id ,(subseq octets 0 eighth))
                                           `(:data ,id ,(subseq octets eighth (1+ eighth))))
                          collect id)))
          (is (eq :resource-exhausted (verdict attacker (fourth ids))))
          (is (< 180000 (held-octets server) 200000) "~D octets held" (held-octets server))
          (dolist (id (subseq ids 0 3))
            (loop for at from (1+ eighth) below (length octets) by 16384
                  for end = (min (+ at 16384) (length octets))
                  do (throw-frames attacker
                                   `(:data ,id ,(subseq octets at end)
                                           ,@(when (= end (length octets)) '(:end-stream)))))
            (is (eq :ok (verdict attacker id))))
          (check-nothing-held server))))))

(defun throw-within-window (attacker id octets limit)
  "Throw OCTETS, whole messages, on stream ID again and again, as long as the server gives window
back, up to LIMIT octets or so; return how many octets that were."
  (let ((window 65535) (sent 0))
    (loop
      (loop while (<= (length octets) window)
            do (throw-frames attacker `(:data ,id ,octets))
               (incf sent (length octets))
               (decf window (length octets)))
      (let ((update (and (< sent limit)
                         (first (last (hear attacker
                                            (lambda (form)
                                              (and (eq :window-update (first form))
                                                   (= id (second form))))
                                            :seconds 0.3))))))
        (if (eq :window-update (first update))
            (incf window (third update))
            (return sent))))))

(test unread-messages
  "A handler that does not read holds its client up, also if the messages have no octets; once it
reads, everything goes on."
  (dolist (octets (list (repeated (framed (octets-of)) 1000) (note-octets 1 :body 5000)))
    (let ((go-on (make-signal)))
      (with-victim (address :server server :options *tight*
                            :handlers (list :ask #'answer
                                            :collect (lambda (stream call)
                                                       (await-signal go-on)
                                                       (add-up stream call))))
        (with-attacker (attacker address)
          (let* ((id (demand attacker "/lab.Bench/Collect" (octets-of) :end nil))
                 (sent (throw-within-window attacker id octets 1000000)))
            (is (< sent 250000) "~D octets taken" sent)
            (is (< 0 (held-octets server) 1000000) "~D octets held" (held-octets server))
            (signal-it go-on)
            (throw-frames attacker `(:data ,id "" :end-stream))
            (is (eq :ok (verdict attacker id)))
            (check-nothing-held server)))))))

(test peer-that-never-reads
  "Answers that are not taken stop the reading of requests; when they are taken at last, all are
there."
  (with-victim (address :options '(:max-unsent-octets 16384))
    (with-attacker (attacker address)
      (let* ((fields (request-fields "/no.Such/Method"))
             (count 120000)
             (requests (many-requests attacker fields count))
             (at (throw-some attacker requests 0 0.3))
             (endings 0))
        (loop while (and at (< endings count))
              do (setf at (throw-some attacker requests at 0))
                 (let ((heard (hear attacker (let ((n 0)) (fn (_form) (< 1000 (incf n))))
                                    :seconds (if (= at (length requests)) 5 0.01))))
                   (incf endings (count-if (lambda (form) (member :end-stream form)) heard))
                   (when (and (null heard) (= at (length requests))) (return))))
        (is (= count endings))
        (is-true (served-p attacker))))))

(defun many-requests (attacker fields count)
  "COUNT requests of FIELDS without content as octets. They differ in nothing but their stream,
since all fields are in the tables from the second on."
  (let ((speech (attacker-speech attacker)))
    (flet ((one ()
             (frames-octets speech (list (list :headers (new-id attacker) fields :end-stream)))))
      (let* ((first (one))
             (octets (one))
             (all (repeated octets (1- count))))
        (loop for i from 1 below (1- count)
              do (setf (u32be all (+ 5 (* i (length octets)))) (new-id attacker)))
        (concatenate 'octets first all)))))

;;; Whatever the moment

(defstruct (witness (:copier nil))
  "How many handlers have begun and ended."
  (begun 0 :type sb-ext:word)
  (ended 0 :type sb-ext:word))

(defun witnessed (witness function)
  "FUNCTION, a handler, seen by WITNESS."
  (lambda (request call)
    (sb-ext:atomic-incf (witness-begun witness))
    (unwind-protect (funcall function request call)
      (sb-ext:atomic-incf (witness-ended witness)))))

(defun witnessed-handlers (witness)
  (loop for (key function) on (list :ask #'answer-or-wait :watch #'count-down :collect #'add-up
                                    :chat #'echo)
          by #'cddr
        collect key
        collect (witnessed witness function)))

(defun answer-or-wait (note call)
  "Answer soon, later, never."
  (ecase (mod (number-of note) 3)
    (0 (answer note call))
    (1 (grpc:after call 0.001 (lambda () (grpc:reply call (answer note call)))) call)
    (2 call)))

(defun check-all-ended (witness)
  (is (wait-until (lambda () (= (witness-begun witness) (witness-ended witness))))
      "~D handlers run on" (- (witness-begun witness) (witness-ended witness)))
  (is (plusp (witness-begun witness))))

(defun throw-random-call (attacker)
  "Open a stream with a call that is cut, reset, given a deadline or window, or nothing of this."
  (let* ((id (new-id attacker))
         (octets (apply #'concatenate 'octets
                        (loop repeat (1+ (random 4)) collect (note-octets (random 30)))))
         (cut (if (zerop (random 3)) (random (length octets)) (length octets))))
    (throw-frames attacker
                  `(:headers ,id ,(request-fields
                                   (elt *paths* (random 4))
                                   :fields (when (zerop (random 3))
                                             `(("grpc-timeout" ,(format nil "~Dm" (random 20)))))))
                  `(:data ,id ,(subseq octets 0 cut) ,@(when (zerop (random 2)) '(:end-stream))))
    (ecase (random 5)
      ((0 1) (throw-frames attacker `(:rst-stream ,id ,(random 14))))
      (2 (throw-frames attacker `(:window-update ,id ,(1+ (random 5000)))))
      (3 (throw-frames attacker `(:settings (:initial-window-size ,(random 5000)))))
      (4 (hear attacker (constantly nil) :seconds 0.0005)))))

(test reset-at-any-moment
  "Calls of every kind, reset or late at any moment of their life, on connections that vanish."
  (with-random (reset-at-any-moment)
    (let ((witness (make-witness)))
      (with-victim (address :server server :handlers (witnessed-handlers witness))
        (dotimes (i 60)
          (with-attacker (attacker address :settings `((:initial-window-size ,(random 20000))))
            (loop repeat (random 40) do (throw-random-call attacker))))
        (check-all-ended witness)
        (check-nothing-held server)))))

(test vanishing-clients
  "Clients that go while their calls run, in the middle of a message, or as soon as they have come."
  (let ((witness (make-witness)))
    (with-victim (address :handlers (witnessed-handlers witness))
      (dotimes (i 300)
        (with-attacker (attacker address :polite (plusp (mod i 4)))
          (when (plusp (mod i 4))
            (dolist (path *paths*)
              (demand attacker path (concatenate 'octets (note-octets 2) (octets-of 0 0 0 0 9 1))
                      :end nil))
            ;; some are given the time to begin
            (when (zerop (mod i 10))
              (let ((begun (witness-begun witness)))
                (wait-until (lambda () (< begun (witness-begun witness))) :seconds 1))))))
      (check-all-ended witness))))

(test calls-that-wait-for-long
  "What a handler wants done much later is forgotten when its call ends: no timer is left."
  (with-victim (address :server server :options '(:execution :inline)
                        :handlers (list :ask #'answer
                                        :watch (fn (_note call)
                                                 (loop repeat 3
                                                       do (grpc:after call 3600 #'list))
                                                 call)))
    (let ((wheel
           (loop:event-loop-wheel (server:server-loop-loop (first (server:server-loops server)))))
          (ids '()))
      (with-attacker (attacker address)
        (dotimes (i 100)
          (push (demand attacker "/lab.Bench/Watch" (note-octets 1)
                        :fields '(("grpc-timeout" "1H")))
                ids))
        (is-true (served-p attacker))
        (is (<= 400 (wheel-count wheel)))
        (dolist (id (rest ids))
          (throw-frames attacker `(:rst-stream ,id :cancel)))
        (is-true (served-p attacker)))
      ;; what is left is the links' own
      (eventually (< (wheel-count wheel) 5)))))

(test streams-without-window
  "Many streams that may not send; then they may, and all end well."
  (with-victim (address :server server :options '(:reserve-threads 160))
    (with-attacker (attacker address :settings '((:initial-window-size 0)))
      (let ((ids (loop repeat 60 collect (demand attacker "/lab.Bench/Watch" (note-octets 30)))))
        (is (every (lambda (form) (not (eq :data (first form))))
                   (hear attacker (let ((n 0)) (lambda (form) (and (eq :headers (first form))
                                                                   (= 60 (incf n)))))))
            "data without window")
        (throw-frames attacker '(:settings (:initial-window-size 1000000)))
        (let ((endings (count-if (lambda (form) (eq :ok (ending-of form)))
                                 (hear attacker
                                       (let ((n 0))
                                         (lambda (form)
                                           (and (member :end-stream form) (= 60 (incf n)))))))))
          (is (= (length ids) endings)))))))

(test connections-come-and-go
  (with-victim (address)
    (dotimes (i 1000)
      (close-socket (attacker-socket (connect address))))))
