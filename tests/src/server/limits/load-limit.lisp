;;;; The limits for all peers of a server together, at one server loop.

(in-package #:clgrpc.tests.server)

(test shares-of-loops
  "A limit of the server is divided among its loops, rounded up."
  (with-server-loop (server-loop) (:ask #'double)
    (is (= 7 (server::share-out 7 (server::server-loop-server server-loop))))))

(test calls-are-kept-for-other-peers
  "No peer may have all calls; a peer without calls gets one."
  (with-server-loop (server-loop :options '(:max-calls 32)) (:ask #'keep-open)
    (comes server-loop :peer "greedy")
    (let ((greedy memory:*end*) (begun 0))
      (loop for id from 1 by 2
            repeat 40
            do (asks id "Ask" 1)
               (let ((statuses (statuses)))
                 (if statuses
                     (is (equal (list (list id :resource-exhausted)) statuses))
                     (incf begun))))
      (is (<= 24 begun 31) "one peer had ~D of 32 calls" begun)
      (is (= begun (server::server-loop-open server-loop)))
      (comes server-loop :peer "other")
      (asks 1 "Ask" 1)
      (answered)
      (is (= (1+ begun) (server::server-loop-open server-loop)))
      (memory:hangs-up)
      (is (= begun (server::server-loop-open server-loop)))
      (memory:stop-talking memory:*world* greedy)
      (is (zerop (server::server-loop-open server-loop))))))

(defun asks-at-once (ids)
  "Send requests on the stream IDS so that the server gets them in one read, during which it does
not stop reading. Each is a note with its number."
  (apply #'memory:hears
         (loop for id in ids
               append `((:headers ,id ((":method" "POST") (":scheme" "http")
                                       (":path" "/lab.Bench/Ask")
                                       ("content-type" "application/grpc")))
                        (:window-update ,id 1000000)
                        (:data ,id ,(coerce (note-octets id) 'octets) :end-stream)))))

(test calls-wait-while-their-peer-takes-nothing
  "While much of a link's output is unsent, its calls do not begin; they do once it is sent."
  (let ((begun '()))
    (with-server-loop (server-loop :options '(:max-unsent-octets 65536 :max-queued-octets 65536))
        (:ask (handling (note)
                (push (number-of note) begun)
                (note 1 :body 100000)))
      (comes server-loop)
      (memory:hears '(:window-update 0 10000000))
      (setf (memory:end-full memory:*end*) t)
      (asks-at-once '(1 3 5 7 9))
      (is (< 0 (length begun) 5) "begun: ~S" begun)
      (setf (memory:end-full memory:*end*) nil)
      (memory:say memory:*world* memory:*end* (make-octets 0))
      (is (equal '(1 3 5 7 9) (sort begun #'<)))
      (is (equal '(:ok :ok :ok :ok :ok) (mapcar #'second (statuses)))))))

(test calls-begin-in-the-order-in-which-they-came
  "Calls that wait because of output, and must wait once more after they begin to continue, keep
their places before later ones."
  (let ((begun '()))
    (with-server-loop (server-loop :options '(:max-unsent-octets 65536 :max-queued-octets 65536))
        (:ask (handling (note)
                (push (number-of note) begun)
                (note 1 :body 100000)))
      (comes server-loop)
      (memory:hears '(:window-update 0 10000000))
      (setf (memory:end-full memory:*end*) t)
      (let ((ids (loop for id from 1 to 31 by 2 collect id)))
        (asks-at-once ids)
        (let ((link (aref (server:server-loop-links server-loop) 0)))
          (setf (memory:end-full memory:*end*) nil)
          ;; output may leave several times before the first call continues
          (memory:call-in-world memory:*world*
                                (lambda ()
                                  (loop repeat 3
                                        do (wire:link-event server-loop link :output-left)))))
        (memory:say memory:*world* memory:*end* (make-octets 0))
        (is (equal ids (reverse begun)))))))
