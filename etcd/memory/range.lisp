;;;; Ranges of keys, and answers to requests that read them.

(in-package #:clgrpc.memory)

(defun range-bounds (key end)
  "Two values: the first key, and the end, nil for none, of the range given by KEY and END of a
request."
  (cond ((zerop (length end)) (values key (concatenate 'octets key '(0))))
        ((equalp #(0) end) (values key nil))
        (t (values key end))))

(defun range-items (tree key end &optional limit)
  "Two values: the items of TREE in the range of KEY and END, in order, at most LIMIT; and how many
items the range has without the limit."
  (if (zerop (length end))
      (let ((item (tree-item tree key)))
        (values (and item (not (eql 0 limit)) (list item)) (if item 1 0)))
      (multiple-value-bind (start end) (range-bounds key end)
        (let ((items '()) (left (or limit -1)))
          (block all
            (map-range (lambda (item)
                         (when (zerop left) (return-from all))
                         (decf left)
                         (push item items))
                       tree start end))
          (values (nreverse items) (count-range tree start end))))))

(defun key-value (item &optional keys-only)
  "ITEM as a message; nil for nil."
  (and item
       (mvccpb:make-key-value :key (item-key item)
                              :value (if keys-only (make-octets 0) (item-value item))
                              :create-revision (item-created item)
                              :mod-revision (item-changed item)
                              :version (item-version item) :lease (item-lease item))))

(defun header (revision)
  (pb:make-response-header :cluster-id 1 :member-id 1 :revision revision :raft-term 1))

(defun in-bounds-p (item request)
  "True if the revisions of ITEM are within the bounds in REQUEST, a RangeRequest."
  (flet ((within (least revision most)
           (and (or (zerop least) (<= least revision))
                (or (zerop most) (<= revision most)))))
    (and (within (pb:range-request-min-mod-revision request) (item-changed item)
                 (pb:range-request-max-mod-revision request))
         (within (pb:range-request-min-create-revision request) (item-created item)
                 (pb:range-request-max-create-revision request)))))

(defun bounded-p (request)
  "True if REQUEST, a RangeRequest, has bounds for revisions."
  (or (/= 0 (pb:range-request-min-mod-revision request))
      (/= 0 (pb:range-request-max-mod-revision request))
      (/= 0 (pb:range-request-min-create-revision request))
      (/= 0 (pb:range-request-max-create-revision request))))

(defun whole-p (request)
  "True if REQUEST, a RangeRequest, must read all items of its range, even with a limit."
  (or (bounded-p request) (not (eq :none (pb:range-request-sort-order request)))))

(defun check-order (request)
  "Refuse REQUEST, a RangeRequest, if its sort key or order is an unknown number."
  (unless (and (keywordp (pb:range-request-sort-target request))
               (keywordp (pb:range-request-sort-order request)))
    (refuse :invalid-order)))

(defun sort-items (items target order)
  "ITEMS, which are in the order of their keys, sorted by TARGET and ORDER of a RangeRequest. Items
that are equal in TARGET stay in their order."
  (if (and (eq :none order) (eq :key target))
      items
      (multiple-value-bind (before key)
          (ecase target
            (:key (values #'before-p #'item-key))
            (:version (values #'< #'item-version))
            (:create (values #'< #'item-created))
            (:mod (values #'< #'item-changed))
            (:value (values #'before-p #'item-value)))
        (stable-sort items (if (eq :descend order)
                               (lambda (a b) (funcall before b a))
                               before)
                     :key key))))

(defun range-response (tree revision request)
  "The answer to REQUEST, a RangeRequest, from TREE, when the store is at REVISION."
  (let* ((order (pb:range-request-sort-order request))
         (limit (let ((limit (pb:range-request-limit request))) (and (plusp limit) limit))))
    (multiple-value-bind (items count)
        (range-items tree (pb:range-request-key request) (pb:range-request-range-end request)
                     (cond ((pb:range-request-count-only request) 0)
                           ((and limit (not (whole-p request))) (1+ limit))))
      (when (bounded-p request)
        (setf items (remove-if-not (lambda (item) (in-bounds-p item request)) items)))
      (setf items (sort-items items (pb:range-request-sort-target request) order))
      (let ((more (and limit (nthcdr limit items) t)))
        (pb:make-range-response
         :header (header revision) :count count :more more
         :kvs (loop for item in items
                    repeat (or limit (length items))
                    collect (key-value item (pb:range-request-keys-only request))))))))
