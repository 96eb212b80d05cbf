;;;; The layout of a state in the store: a head, and separate keys for the parts that do not change
;;;; any more. So the cost of a change depends on its size, not on the number of steps. The
;;;; functions here are functions of states, without access to the store.
;;;;
;;;; - The head is the state with the current step and its neighbours, the small payloads that these
;;;;   need, and the newest changes of the history. A workflow of few steps has only a head.
;;;; - Steps that are done are in chunks of +DONE-CHUNK+, counted from the first step, since their
;;;;   places do not change any more.
;;;; - Steps that are far from being current are in chunks of +LEFT-CHUNK+, counted from the last
;;;;   step, since new steps are only inserted before all remaining ones.
;;;; - The changes of the history are in the head until +HISTORY-CHUNK+ of them get one key.
;;;;
;;;; For example, of 100 steps of which 30 are done the head has the 24th to the 68th: the places 0
;;;; to 23 are three chunks, the last 32 are one.

(in-package #:clgrpc.workflow)

(defconstant +done-chunk+ 8 "The number of finished steps that are stored together under a key.")
(defconstant +left-chunk+ 32
  "How many steps that are far from being under way are stored together.")
(defconstant +near-steps+ 4 "How many steps on each side of the current step are in the head at
least.")

;;; The chunks of steps

(defun chunked (count size)
  "How many of COUNT steps, those farthest from the current step, are in chunks of SIZE."
  (* size (floor (max 0 (- count +near-steps+)) size)))

(defun head-range (state)
  "Two values: the places where the steps in the head of STATE, a whole state, begin and end."
  (let ((count (length (pb:workflow-state-steps state)))
        (current (pb:workflow-state-current state)))
    (values (chunked current +done-chunk+)
            (- count (chunked (max 0 (- count current 1)) +left-chunk+)))))

(defun chunk-name (prefix number)
  (format nil "~A~5,'0D" prefix number))

(defun step-chunks (state)
  "The chunks of steps of STATE, a whole one, in the order of the steps: lists of a name and the
places where its steps begin and end. The chunks have the same order when sorted by name. None for
nil."
  (when state
    (multiple-value-bind (begin end) (head-range state)
      (let ((count (length (pb:workflow-state-steps state))))
        (append (loop for from from 0 below begin by +done-chunk+
                      collect (list (chunk-name "done" from) from (+ from +done-chunk+)))
                (loop for from from end below count by +left-chunk+
                      collect (list (chunk-name "left" (- 99999 (- count from)))
                                    from (+ from +left-chunk+))))))))

(defun steps-key (root state name)
  "The key of the chunk NAME of STATE's present run. The key contains the run, since another run has
other steps."
  (key root "steps" (pb:workflow-state-id state)
       (format nil "~8,'0D-~A" (pb:workflow-state-run state) name)))

;;; Payloads

(defun small-payload (state key)
  "The payload of STATE at KEY, below data/ID/, if it is a small one, which is stored with the
state."
  (let ((payload (find key (pb:workflow-state-payloads state) :key #'pb:payload-key
                                                              :test #'string=)))
    (and payload (pb:payload-octets payload))))

(defun payload-keys (state begin end)
  "A table of the keys of the payloads of the steps of STATE from BEGIN on and before END."
  (let ((keys (make-hash-table :test 'equal)))
    (loop for i from begin below end
          for step = (elt (pb:workflow-state-steps state) i)
          do (setf (gethash (pb:step-state-input-key step) keys) t
                   (gethash (pb:step-state-result-key step) keys) t))
    keys))

(defun payloads-of (state keys)
  "The small payloads of STATE whose keys are in the table KEYS."
  (remove-if-not (lambda (payload) (gethash (pb:payload-key payload) keys))
                 (pb:workflow-state-payloads state)))

(defun head-payloads (state begin end)
  "The small payloads of STATE that belong in its head, which has the steps from BEGIN up to, but
not including, END. These are the payloads that belong to no chunk, and the payloads of the head's
steps and of the next task."
  (let ((count (length (pb:workflow-state-steps state))))
    (if (and (zerop begin) (= end count))
        (pb:workflow-state-payloads state)
        (let ((own (payload-keys state begin end))
              (done (payload-keys state 0 begin)) (left (payload-keys state end count)))
          (setf (gethash (pb:workflow-state-data-key state) own) t)
          (remove-if (lambda (payload)
                       (let ((key (pb:payload-key payload)))
                         (and (or (gethash key done) (gethash key left))
                              (not (gethash key own)))))
                     (pb:workflow-state-payloads state))))))

;;; Splitting a state into chunks, and joining them

(defun state-head (state)
  "The head of STATE, a whole state; the head shares its parts with STATE."
  (multiple-value-bind (begin end) (head-range state)
    (let ((head (copy-structure state)) (steps (pb:workflow-state-steps state)))
      (setf (pb:workflow-state-payloads head) (head-payloads state begin end)
            (pb:workflow-state-steps head) (subseq steps begin end)
            (pb:workflow-state-steps-before head) begin
            (pb:workflow-state-steps-after head) (- (length steps) end))
      head)))

(defun stored-steps (state begin end)
  "The contents of the chunk of the steps of STATE from BEGIN on and before END."
  (pb:make-stored-steps :steps (subseq (pb:workflow-state-steps state) begin end)
                        :payloads (payloads-of state (payload-keys state begin end))))

(defun chunk-operations (root old state)
  "The operations of TRANSACT that change the chunks of steps from those of OLD, a whole state or
nil, to those of STATE. A chunk is put only once. The chunks of a former run, which may be more than
a transaction has operations, are removed by one operation."
  (flet ((names (state)
           (loop for (name) in (step-chunks state) collect (steps-key root state name))))
    (let ((before (names old)) (after (names state)))
      (append (cond ((null before) '())
                    ((/= (pb:workflow-state-run old) (pb:workflow-state-run state))
                     (list (list :remove-all :prefix (steps-key root old ""))))
                    (t (loop for key in (set-difference before after :test #'string=)
                             collect (list :remove key))))
              (loop for key in after
                    for (nil begin end) in (step-chunks state)
                    unless (member key before :test #'string=)
                      collect (list :put key (protobuf:serialize
                                              (stored-steps state begin end))))))))

(defun whole-p (head)
  "True if HEAD has all steps."
  (and (zerop (pb:workflow-state-steps-before head)) (zerop (pb:workflow-state-steps-after head))))

(defun join-state (head chunks)
  "The whole state made of HEAD, which is changed, and CHUNKS, StoredSteps in the order of their
keys."
  (let ((done (floor (pb:workflow-state-steps-before head) +done-chunk+)))
    (flet ((steps (chunks)
             (loop for chunk in chunks append (coerce (pb:stored-steps-steps chunk) 'list))))
      (setf (pb:workflow-state-steps head)
            (concatenate 'vector (steps (subseq chunks 0 done)) (pb:workflow-state-steps head)
                         (steps (subseq chunks done)))
            (pb:workflow-state-payloads head)
            (remove-duplicates (concatenate 'vector
                                            (loop for chunk in chunks
                                                  append (coerce (pb:stored-steps-payloads chunk)
                                                                 'list))
                                            (pb:workflow-state-payloads head))
                               :key #'pb:payload-key :test #'string=)
            (pb:workflow-state-steps-before head) 0
            (pb:workflow-state-steps-after head) 0)
      head)))

(defun told-state (state)
  "STATE as users see it: without the fields that are for the store alone."
  (let ((told (copy-structure state)))
    (setf (pb:workflow-state-changes told) '()
          (pb:workflow-state-payloads told) '())
    told))

(defun state-octets (state)
  (protobuf:serialized-size (told-state state)))

(defconstant +key-octets+ 500
  "The octets that the keys of an ended workflow, and etcd's index of them, occupy.")

(defun kept-octets (state)
  "About how many octets of the store STATE and all that belongs to it occupy."
  (+ +key-octets+ (pb:workflow-state-payload-octets state) (protobuf:serialized-size state)))
