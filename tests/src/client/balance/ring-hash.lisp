;;;; ring_hash: rings, the server for a call, states, configs.

(in-package #:clgrpc.tests.balance)

(defvar *core*)

(defvar *balancer*)

(defun ring-of (numbers &key (least 1024) (most 4096) (limit 4096))
  (balance::build-ring (loop for number in numbers
                             for backend = (backend number)
                             collect (client::make-subchannel
                                      :core *core* :balancer *balancer*
                                      :key (client:backend-key backend)
                                      :addresses (client:backend-addresses backend)
                                      :note (balance::make-ring-note :share 1)))
                       (balance::make-ring-config :least least :most most)
                       limit))

(defun owner (ring key)
  (client:subchannel-key
   (svref (balance::ring-servers ring)
          (balance::ring-index ring (balance:xxh64 (string-octets (format nil "key ~D" key)))))))

(test few-keys-move
  "When one of 1,000 servers is removed, only its own keys move, as many as its share."
  (with-core (*core*)
    (let* ((*balancer* (switch-of *core*))
           (keys 200000)
           (numbers (loop for i below 1000 collect i))
           (whole (ring-of numbers :least 4096))
           (before (make-array keys)))
      (dotimes (key keys) (setf (svref before key) (owner whole key)))
      (dolist (gone '(0 123 500 777 999))
        (let ((ring (ring-of (remove gone numbers) :least 4096))
              (moved 0)
              (its (count (address gone) before :test #'string=)))
          (dotimes (key keys)
            (unless (string= (svref before key) (owner ring key)) (incf moved)))
          (is (plusp its))
          (is (<= moved (* 1.5 its)) "~D moved, ~D were its own" moved its))))))

(test sizes-of-rings
  (with-core (*core*)
    (let ((*balancer* (switch-of *core*)))
      (flet ((size (numbers &rest arguments)
               (length (balance::ring-servers (apply #'ring-of numbers arguments)))))
        (is (= 1026 (size '(1 2 3))))
        (is (= 1024 (size '(1))))
        (is (= 9 (size '(1 2 3) :least 10 :most 10)))
        (is (= 3 (size '(1 2 3) :least 1)))
        (is (= 99 (size '(1 2 3) :least 5000 :most 8000 :limit 100)) "limited by the channel")))))

(defparameter *ring* "[{\"ring_hash_experimental\":{\"requestHashHeader\":\"X-Key\"}}]")

(test rings-connect-for-calls
  (with-core (core)
    (update core *ring* 1 2 3)
    (is (eq :idle (state core)))
    (is (every (lambda (subchannel) (eq :idle (client:subchannel-state subchannel))) (live core)))
    (let ((call (call-with-key core "alpha" "beta")))
      (is (null (pick core call)))
      (settle core)
      (is (= 1 (count :connecting (live core) :key #'client:subchannel-state)))
      (is (eq :connecting (state core)))
      (let ((first (find :connecting (live core) :key #'client:subchannel-state)))
        (come-to :ready first)
        (loop repeat 100 do (is (eq first (pick core call))))
        ;; a call without a key takes any ready server, and one more server connects
        (is (eq first (pick core (call-with-key core))))
        (settle core)
        (is (<= (count :connecting (live core) :key #'client:subchannel-state) 1))
        ;; calls skip a server that has failed
        (come-to :idle first)
        (client:connect first)
        (client::wait-for-better-times (client:subchannel-connection-set first) "it rains")
        (loop repeat 3
              until (pick core call)
              do (settle core)
                 (dolist (other (remove first (live core)))
                   (when (eq :connecting (client:subchannel-state other))
                     (come-to :ready other))))
        (is (client:subchannel-p (pick core call)))
        (is (not (eq first (pick core call))))
        (come-to :ready first)
        (is (eq first (pick core call)) "calls come back to the first server")))))

(test empty-keys-are-none
  "gRFC A76: else all calls whose key is empty would come to the same server."
  (with-core (core)
    (update core *ring* 1 2 3)
    (dolist (number '(1 2 3)) (client:connect (member-to core number)))
    (bring core :ready 1 2 3)
    (flet ((picked (&rest key)
             (let ((call (apply #'call-with-key core key)))
               (length (remove-duplicates (loop repeat 100 collect (pick core call)))))))
      (is (= 1 (picked "alpha")))
      (is (= 1 (picked "" "beta")))
      (is (= 3 (picked "")))
      (is (= 3 (picked "" ""))))))

(test states-of-rings
  "gRFC A61: two that have failed are a failure, one is not; then others are tried without calls."
  (with-core (core)
    (update core *ring* 1 2 3)
    (flet ((break-down (number)
             (client:connect (member-to core number))
             (bring core :transient-failure number)))
      (break-down 1)
      (is (eq :connecting (state core)))
      (is (= 1 (count :connecting (live core) :key #'client:subchannel-state))
          "another server is tried")
      (let ((tried (find :connecting (live core) :key #'client:subchannel-state)))
        (client::wait-for-better-times (client:subchannel-connection-set tried) "it snows")
        (settle core)
        (is (eq :transient-failure (state core)))
        (let ((last (find :connecting (live core) :key #'client:subchannel-state)))
          (is-true last)
          (come-to :ready last)
          (is (eq :ready (state core)))
          (is (eq last (pick core (call-with-key core)))))))))

(test which-server-is-tried-is-chance
  "gRFC A117: else all clients whose servers fail would come to the same one."
  (let ((tried '()))
    (dotimes (i 40)
      (with-core (core)
        (update core *ring* 1 2 3 4 5 6 7 8)
        (client:connect (member-to core 1))
        (bring core :transient-failure 1)
        (pushnew (client:subchannel-key
                  (find :connecting (live core) :key #'client:subchannel-state))
                 tried :test #'string=)))
    (is (<= 3 (length tried)) "~D others of 7 were tried, in 40 channels" (length tried))))

(test configs-of-rings
  (dolist (row '(("{\"minRingSize\":0}" "minRingSize")
                 ("{\"maxRingSize\":8388609}" "maxRingSize")
                 ("{\"minRingSize\":20,\"maxRingSize\":10}" "minRingSize")
                 ("{\"requestHashHeader\":\"key-bin\"}" "requestHashHeader")
                 ("{\"requestHashHeader\":\"a b\"}" "requestHashHeader")))
    (is (string= (format nil "loadBalancingConfig[0].ring_hash_experimental.~A" (second row))
                 (config-error-path
                  (format nil "[{\"ring_hash_experimental\":~A}]" (first row)))))))

(test rings-without-a-header-fail-calls
  "gRFC A76: nothing says the hash, as xDS would, so the pick fails; nobody is connected to."
  (with-core (core)
    (update core "[{\"ring_hash_experimental\":{}}]" 1 2)
    (let ((picked (pick core (call-with-key core "alpha"))))
      (is (search "requestHashHeader" (client:failure-text picked)))
      (is (eq :unavailable (client::failure-status picked))))
    (settle core)
    (is (every (lambda (subchannel) (eq :idle (client:subchannel-state subchannel)))
               (live core)))
    (let ((call (call-with-key core "alpha")))
      (client::submit call nil)
      (is (eq :unavailable (clgrpc.rpc:call-status call)) "the call does not wait"))))

(defun entries-of (core number)
  "The number of entries of the server NUMBER in CORE's ring."
  (let ((ring (balance::ring-hash-ring (policy-of core))))
    (count (member-to core number) (balance::ring-servers ring))))

(test servers-of-a-ring-have-weights
  "gRFC A42: by an attribute, or by being told several times."
  (with-core (core)
    (update core *ring* (backend 1 :weight 3) (backend 2 :weight 6) 3)
    (is (equal '(309 618 103)
               (list (entries-of core 1) (entries-of core 2) (entries-of core 3))))
    (update core "[{\"ring_hash_experimental\":{\"requestHashHeader\":\"x-key\",
                   \"minRingSize\":10}}]"
            (backend 1 :weight 3) (backend 2 :weight 6) 3)
    (is (equal '(3 6 1) (list (entries-of core 1) (entries-of core 2) (entries-of core 3))))
    (update core "[{\"ring_hash_experimental\":{\"requestHashHeader\":\"x-key\",
                   \"minRingSize\":10}}]"
            1 2 1 (backend 2 :weight 4) 1)
    (is (= 2 (length (live core))))
    (is (equal '(4 6) (list (entries-of core 1) (entries-of core 2)))
        "three of eight, and five: the lighter has a whole number")))

(test places-on-the-ring-are-those-of-a-servers-key
  "The key is the attribute :hash-key, else the first address (gRFC A76). A new key moves a server."
  (with-core (core)
    (flet ((hashes (&rest backends)
             (apply #'update core *ring* backends)
             (copy-seq (balance::ring-hashes
                        (balance::ring-hash-ring
                         (policy-of core))))))
      (let ((plain (hashes 1)))
        (is (equalp plain (hashes (backend 1 :hash-key ""))))
        (is (= (reduce #'min plain)
               (loop for number below 1024
                     minimize (balance:xxh64 (string-octets (format nil "~A_~D" (address 1)
                                                                    number))))))
        (let ((server (member-to core 1))
              (named (hashes (backend 1 :hash-key "pod-0"))))
          (is (not (equalp plain named)))
          (is (eq server (member-to core 1)) "the server keeps its connections")
          (is (equalp named (hashes (backend 2 :hash-key "pod-0"))))))
      (is (not (equalp (hashes (client::parse-backend (list (list (address 1) (address 2)))))
                       (hashes (client::parse-backend (list (list (address 2) (address 1)))))))))))

(test rings-are-sorted
  (let* ((state (sb-ext:seed-random-state 7))
         (hashes (coerce (loop repeat 3000 collect (random (expt 2 64) state))
                         'balance::hashes))
         (servers (coerce hashes 'simple-vector)))
    (multiple-value-bind (hashes servers) (balance::sort-by-hash hashes servers)
      (is (loop for i from 1 below 3000 always (<= (aref hashes (1- i)) (aref hashes i))))
      (is (equalp hashes servers)))))

(test failures-of-rings-are-those-of-the-keys-server
  "gRFC A61: if all have failed, the text is that of the first that would have had the call."
  (with-core (core)
    (update core *ring* 1 2)
    (dolist (number '(1 2))
      (client:connect (member-to core number))
      (bring core :transient-failure number))
    (let ((texts (remove-duplicates
                  (loop for i below 50
                        for call = (call-with-key core (format nil "key ~D" i))
                        for text = (client:failure-text (pick core call))
                        do (is (string= text (client:failure-text (pick core call))))
                        collect text)
                  :test #'string=)))
      (is (equal '("1 is down" "2 is down") (sort texts #'string<))))))

(test calls-go-on-around-the-ring
  "To the next entry of a server that has not failed; the first entry follows the last."
  (with-core (core)
    (update core *ring* 1 2 3)
    (dolist (number '(1 2 3)) (client:connect (member-to core number)))
    (bring core :transient-failure 1)
    (bring core :ready 2 3)
    (let* ((failed (member-to core 1))
           (ring (balance::ring-hash-ring (policy-of core)))
           (servers (balance::ring-servers ring))
           (count (length servers)))
      (dotimes (start count)
        (let ((next (loop for i from start
                          for server = (svref servers (mod i count))
                          unless (eq failed server) return server)))
          (unless (eq next (balance::pick-by-key (policy-of core) ring start))
            (fail "from ~D" start)))))))

(test a-ring-is-of-the-servers-that-there-is-room-for
  (let ((policy "{\"ring_hash\":{\"requestHashHeader\":\"x-key\"}}"))
    (tests:with-core (core puppet :pick-first :options (:max-subchannels 2))
      (update core (format nil "[~A]" policy) 1 2 3)
      (is (= 2 (length (live core))))
      (let ((ring (balance::ring-hash-ring (policy-of core))))
        (is (null (set-exclusive-or (live core)
                                    (coerce (balance::ring-servers ring) 'list))))))
    (tests:with-core (core puppet :pick-first :options (:max-subchannels 2))
      (update core (format nil "[{\"weighted_target_experimental\":{\"targets\":~
                                 {\"a\":{\"weight\":1,\"childPolicy\":[~A]},~
                                  \"b\":{\"weight\":1,\"childPolicy\":[~:*~A]}}}}]"
                           policy)
              1 2)
      (is (= 2 (length (live core))))
      (is (eq :connecting (state core)) "the other target has no servers"))))
