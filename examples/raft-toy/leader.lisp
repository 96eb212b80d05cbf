;;;; What a toy does of its own accord: it stands for election, replicates texts, sends its log to
;;;; one that has none, and hands the leadership over.

(in-package #:clgrpc.examples.raft-toy)

(defun start-toy (toy &key (listen "127.0.0.1:0"))
  "Serve TOY; return its address."
  (setf (toy-server toy) (grpc:start-server (raft:make-raft-service toy) :listen listen))
  (grpc:server-address (toy-server toy)))

(defun connect-toy (toy names-and-addresses)
  "Connect TOY to the others, an alist."
  (setf (toy-peers toy)
        (loop for (name . address) in names-and-addresses
              unless (string= name (toy-name toy))
                collect (raft:make-peer name address :timeout 2))))

(defun stop-toy (toy)
  (mapc #'raft:close-peer (shiftf (toy-peers toy) '()))
  (when (toy-server toy) (grpc:stop-server (shiftf (toy-server toy) nil) :drain 0)))

(defun majority-p (toy count)
  (> (* 2 count) (1+ (length (toy-peers toy)))))

(defun ask-for-votes (toy question term)
  "Ask all others at once; return how many have granted their vote. Those that cannot be reached
have not."
  (let* ((request (with-toy (toy)
                    (v1:make-request-vote-request
                     :term term :candidate (toy-name toy) :last-log-index (last-index toy)
                     :last-log-term (term-at toy (last-index toy)))))
         (answers (sb-thread:make-semaphore))
         (votes (list 0)))
    (dolist (peer (toy-peers toy))
      (funcall question peer request
               :then (lambda (response error)
                       (when (and (null error) (v1:request-vote-response-granted response))
                         (sb-ext:atomic-incf (car votes)))
                       (sb-thread:signal-semaphore answers))))
    (sb-thread:wait-on-semaphore answers :n (length (toy-peers toy)))
    (first votes)))

(defun elect (toy)
  "Have TOY stand for election; return true if it leads."
  (let ((term (1+ (toy-term toy))))
    (when (majority-p toy (1+ (ask-for-votes toy #'raft:pre-vote term)))
      (with-toy (toy)
        (setf (toy-term toy) term
              (toy-vote toy) (toy-name toy)
              (toy-told toy) nil))
      (majority-p toy (1+ (ask-for-votes toy #'raft:request-vote term))))))

(defun request-from (toy first last)
  "The request with the entries FIRST to LAST of TOY's log, none if FIRST is above LAST."
  (v1:make-append-entries-request
   :term (toy-term toy) :leader (toy-name toy) :leader-commit (toy-commit toy)
   :prev-log-index (1- first) :prev-log-term (term-at toy (1- first))
   :entries (loop for index from first to last
                  collect (v1:make-entry :index index :term (term-at toy index)
                                         :data (text-octets
                                                (item-text (aref (toy-items toy) (1- index))))))))

(defun replicate (toy &rest texts)
  "Append TEXTS to the log of TOY, which leads, and send them down the pipelines, an entry each.
Return the last index that a majority has by the time all have answered, which is committed then."
  (let ((matches (make-hash-table :test 'equal :synchronized t)))
    (dolist (text texts)
      (with-toy (toy)
        (vector-push-extend (make-item (toy-term toy) text) (toy-items toy))
        (let ((request (request-from toy (last-index toy) (last-index toy))))
          (dolist (peer (toy-peers toy))
            (let ((name (raft:peer-name peer)))
              (raft:pipeline-entries
               peer request
               (lambda (response error)
                 (when (and (null error) (v1:append-entries-response-success response))
                   (setf (gethash name matches)
                         (v1:append-entries-response-match-index response))))))))))
    (mapc #'raft:flush-pipeline (toy-peers toy))
    (let ((reached (sort (list* (last-index toy)
                                (loop for peer in (toy-peers toy)
                                      collect (gethash (raft:peer-name peer) matches 0)))
                         #'>)))
      (setf (toy-commit toy) (max (toy-commit toy)
                                  (nth (floor (length reached) 2) reached))))))

(defun tell-commit (toy)
  "Tell the others what is committed: a sign of life. Return the names of those whose log is not as
long as TOY's."
  (loop for peer in (toy-peers toy)
        unless (handler-case
                   (v1:append-entries-response-success
                    (raft:append-entries
                     peer (with-toy (toy) (request-from toy (1+ (last-index toy))
                                                        (last-index toy)))))
                 (grpc:rpc-error () nil))
          collect (raft:peer-name peer)))

(defun find-peer (toy name)
  (find name (toy-peers toy) :key #'raft:peer-name :test #'string=))

(defun catch-up (toy name)
  "Send the log of TOY to the member NAME as a snapshot."
  (raft:install-snapshot (find-peer toy name)
                         (with-toy (toy)
                           (v1:make-snapshot-header
                            :term (toy-term toy) :leader (toy-name toy)
                            :last-included-index (last-index toy)
                            :last-included-term (term-at toy (last-index toy))))
                         (snapshot-of toy)
                         :chunk-octets 16 :timeout 10))

(defun hand-over (toy name)
  "Have the member NAME stand for election, in the place of TOY."
  (raft:timeout-now (find-peer toy name)
                    (v1:make-timeout-now-request :term (toy-term toy) :leader (toy-name toy))))

(defun show ()
  "Have three toys do all of it; say what happens."
  (let* ((toys (mapcar #'make-toy '("A" "B" "C")))
         (addresses (loop for toy in toys collect (cons (toy-name toy) (start-toy toy)))))
    (destructuring-bind (a b c) toys
      (unwind-protect
           (flet ((say (control &rest arguments) (format t "~?~%" control arguments)))
             (dolist (toy toys) (connect-toy toy addresses))
             (say "A stands for election: ~:[it is not elected~;it leads~]" (elect a))
             (say "three entries, committed up to ~D" (replicate a "one" "two" "three"))
             (tell-commit a)
             (say "C has ~{~A~^, ~}" (toy-texts c))
             (stop-toy c)
             (setf c (make-toy "C"))
             (say "C has lost its memory; it has ~D entries" (length (toy-texts c)))
             (start-toy c :listen (cdr (assoc "C" addresses :test #'string=)))
             (connect-toy c addresses)
             (say "not as far as A: ~{~A~^, ~}" (tell-commit a))
             (catch-up a "C")
             (say "after a snapshot C has ~{~A~^, ~}" (toy-texts c))
             (hand-over a "B")
             (say "B was told to stand for election: ~:[it is not elected~;it leads~]"
                  (and (toy-told b) (elect b)))
             (say "another entry, committed up to ~D" (replicate b "four"))
             (tell-commit b)
             (say "A has ~{~A~^, ~}" (toy-texts a)))
        (mapc #'stop-toy (list a b c))))))
